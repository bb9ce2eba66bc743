-- Renews many leases at once: sets a new time to live for each key that holds its token, and tells
-- of the others. Never creates a key.
--
-- KEYS[i]        the lease's key
-- ARGV[2*i - 1]  its token
-- ARGV[2*i]      its ttl in milliseconds
-- Replies        a number for each lease that is not ours, and so was not renewed:
--                i if its key holds something else, -i if there is no such key
-- Errors         ERR for a bad ttl, and then nothing was renewed
for i = 1, #KEYS do
  local ttl = tonumber(ARGV[2 * i])
  if not ttl or ttl <= 0 then
    return redis.error_reply('ERR ttl must be positive')
  end
end
local tokens = redis.call('MGET', unpack(KEYS))
local not_ours = {}
for i = 1, #KEYS do
  if tokens[i] == ARGV[2 * i - 1] then
    redis.call('PEXPIRE', KEYS[i], ARGV[2 * i])
  elseif tokens[i] or redis.call('EXISTS', KEYS[i]) == 1 then
    not_ours[#not_ours + 1] = i
  else
    not_ours[#not_ours + 1] = -i
  end
end
return not_ours
