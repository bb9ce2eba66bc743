-- Renews a lease: sets a new time to live if, and only if, the key holds our token. Never creates
-- the key, and refuses a ttl that isn't positive: PEXPIRE would delete the key and report success.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  our token
-- ARGV[2]  the ttl in milliseconds
-- Replies  1 renewed | 0 it holds another token | -1 there is no such key
-- Errors   ERR for a bad ttl | WRONGTYPE if the key is no string (and then it is not ours)
local ttl = tonumber(ARGV[2])
if not ttl or ttl <= 0 then
  return redis.error_reply('ERR ttl must be positive')
end
local token = redis.call('GET', KEYS[1])
if token == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return token and 0 or -1
