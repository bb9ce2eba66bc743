-- Hands a lease on to the next holder: sets his token in the place of ours, with his time to live,
-- if, and only if, the key holds ours. Nobody else can come in between.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  our token
-- ARGV[2]  the next holder's token
-- ARGV[3]  his ttl in milliseconds
-- Replies  1 handed on | 0 it holds another token | -1 there is no such key
-- Errors   ERR for a bad ttl, OOM (the key is ours still) | WRONGTYPE if the key is no string
local token = redis.call('GET', KEYS[1])
if token == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return 1
end
return token and 0 or -1
