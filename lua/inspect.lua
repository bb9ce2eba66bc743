-- Tells what a key holds, in one look.
--
-- KEYS[1]  the lease's key
-- KEYS[2]  the counter of its fencing numbers
-- Replies  {type, milliseconds to live, length, the first 512 bytes of a string, the counter}
--          type is 'none' for a missing key; -1 milliseconds: the key never expires; an empty
--          counter: there is none
local counter = redis.pcall('GET', KEYS[2])
if type(counter) ~= 'string' then
  counter = ''
end
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'string' then
  return {kind, redis.call('PTTL', KEYS[1]), 0, '', counter}
end
return {kind, redis.call('PTTL', KEYS[1]), redis.call('STRLEN', KEYS[1]),
        redis.call('GETRANGE', KEYS[1], 0, 511), counter}
