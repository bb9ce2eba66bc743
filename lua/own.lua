-- Tells whether all keys of a lease hold our token. If so it draws fencing numbers for them: the
-- answer that told those of the acquisition may be lost.
--
-- KEYS[1..n]       the lease's keys
-- KEYS[n + 1..2n]  the counters of their fencing numbers; or none
-- ARGV[1]  our token
-- ARGV[2]  n
-- Replies  1 they hold our token, and there are no counters | the fencing numbers, as text
--          0 one holds another token | -1 there is no such key
-- Errors   WRONGTYPE if one is no string (and then it is not ours) | ERR for a bad counter
local n = tonumber(ARGV[2])
for i = 1, n do
  local token = redis.call('GET', KEYS[i])
  if token ~= ARGV[1] then
    return token and 0 or -1
  end
end
if #KEYS == n then
  return 1
end
local numbers = {}
for i = n + 1, #KEYS do
  redis.call('INCR', KEYS[i])
  numbers[i - n] = redis.call('GET', KEYS[i])
end
return numbers
