-- Hands a lease on several keys on to the next holder, who wants the same ones: sets his token in
-- the place of ours if all of them hold ours. Otherwise the lease is lost, and those that are ours
-- are deleted.
--
-- KEYS[1..n]       the lease's keys
-- KEYS[n + 1..2n]  the counters of his fencing numbers, if he wants them
-- ARGV[1]  our token
-- ARGV[2]  the next holder's token
-- ARGV[3]  his ttl in milliseconds
-- ARGV[4]  n
-- Replies  1 handed on | his fencing numbers, as text: the same
--          of the first key that was not ours: 0 it holds something else | -1 there is no such key
-- Errors   ERR for a bad ttl or a bad counter, OOM (the keys are ours still)
local n = tonumber(ARGV[4])
local ours, reply = {}, 1
for i = 1, n do
  local token = redis.pcall('GET', KEYS[i])
  if type(token) == 'table' and not string.find(token.err, 'WRONGTYPE', 1, true) then
    return token
  elseif token == ARGV[1] then
    ours[#ours + 1] = KEYS[i]
  elseif reply == 1 then
    reply = token and 0 or -1
  end
end
if #ours < n then
  if #ours > 0 then
    redis.call('DEL', unpack(ours))
  end
  return reply
end

local numbers = {}
for i = n + 1, #KEYS do
  redis.call('INCR', KEYS[i])
  numbers[i - n] = redis.call('GET', KEYS[i])
end
for _, key in ipairs(ours) do
  redis.call('SET', key, ARGV[2], 'PX', ARGV[3])
end
return #numbers > 0 and numbers or 1
