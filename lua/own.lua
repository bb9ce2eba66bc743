-- Tells whether a key holds our token, and changes nothing.
--
-- KEYS[1]  the lease's key
-- ARGV[1]  our token
-- Replies  1 it holds our token | 0 it holds another one | -1 there is no such key
-- Errors   WRONGTYPE if the key is no string (and then it is not ours)
local token = redis.call('GET', KEYS[1])
if token == ARGV[1] then
  return 1
end
return token and 0 or -1
