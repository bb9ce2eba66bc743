-- Hands a lease on to the next holder: sets his token in the place of ours, with his time to live,
-- if, and only if, the key holds ours. Nobody else can come in between.
--
-- KEYS[1]  the lease's key
-- KEYS[2]  the counter of his fencing number, if he wants one
-- ARGV[1]  our token
-- ARGV[2]  the next holder's token
-- ARGV[3]  his ttl in milliseconds
-- Replies  1 handed on | his fencing number, as text: the same
--          0 it holds another token | -1 there is no such key
-- Errors   ERR for a bad ttl or a bad counter, OOM (the key is ours still)
--          WRONGTYPE if the key is no string
local token = redis.call('GET', KEYS[1])
if token ~= ARGV[1] then
  return token and 0 or -1
end
if KEYS[2] then
  redis.call('INCR', KEYS[2])
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return KEYS[2] and redis.call('GET', KEYS[2]) or 1
