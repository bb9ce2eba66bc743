-- Tells what a key holds, in one look.
--
-- KEYS[1]  the lease's key
-- Replies  {type, milliseconds to live, length, the first 512 bytes of a string}
--          type is 'none' for a missing key; -1 milliseconds: the key never expires
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'string' then
  return {kind, redis.call('PTTL', KEYS[1]), 0, ''}
end
return {kind, redis.call('PTTL', KEYS[1]), redis.call('STRLEN', KEYS[1]),
        redis.call('GETRANGE', KEYS[1], 0, 511)}
