-- Gives a lease back: deletes the key if, and only if, it holds our token.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  our token
-- Replies  1 deleted | 0 it holds another token | -1 there is no such key
-- Errors   WRONGTYPE if the key is no string (and then it is not ours)
local token = redis.call('GET', KEYS[1])
if token == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return token and 0 or -1
