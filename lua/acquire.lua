-- Takes a lease on several keys, all or none; or with fencing numbers, from counters that rise by
-- one with each acquisition. Unless it is taken nothing changes.
--
-- KEYS[1..n]       the lease's keys
-- KEYS[n + 1..2n]  the counters of their fencing numbers; or none
-- ARGV[1]  our token
-- ARGV[2]  the ttl in milliseconds
-- ARGV[3]  n
-- Replies  the fencing numbers, as text since Lua's own end at 2^53; empty without counters
--          -i: KEYS[i] is held, or holds something else
-- Errors   ERR for a bad ttl, or a counter that is full or no number | WRONGTYPE for one that is no
--          string | OOM
local n = tonumber(ARGV[3])
for i = 1, n do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    return -i
  end
end

local counted, taken = 0, 0
-- Redis doesn't take back what a script did before it failed.
local function undo(failed)
  for i = 1, taken do
    redis.call('DEL', KEYS[i])
  end
  for i = 1, counted do
    if redis.call('DECR', KEYS[n + i]) == 0 then
      redis.call('DEL', KEYS[n + i])
    end
  end
  return failed
end

local numbers = {}
for i = n + 1, #KEYS do
  local number = redis.pcall('INCR', KEYS[i])
  if type(number) == 'table' then
    return undo(number)
  end
  counted = counted + 1
  numbers[counted] = redis.call('GET', KEYS[i])
end
for i = 1, n do
  local set = redis.pcall('SET', KEYS[i], ARGV[1], 'PX', ARGV[2])
  if set.err then
    return undo(set)
  end
  taken = taken + 1
end
return numbers
