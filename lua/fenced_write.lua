-- Writes a value unless a holder with a higher fencing number has written before, or asked to.
--
-- KEYS[1]  what is written
-- KEYS[2]  the highest number seen for it
-- ARGV[1]  our fencing number
-- ARGV[2]  the value
-- Replies  1 written | 0 refused: a higher number was seen
-- Errors   ERR if what is in KEYS[2] is no number | WRONGTYPE if that is no string | OOM
local ours = ARGV[1]
local seen = redis.call('GET', KEYS[2])
if seen then
  if not string.match(seen, '^%d+$') then
    return redis.error_reply('ERR the highest number seen is no number')
  end
  -- As text, since Lua's own numbers end at 2^53.
  if #seen > #ours or #seen == #ours and seen > ours then
    return 0
  end
end
redis.call('SET', KEYS[2], ours)
redis.call('SET', KEYS[1], ARGV[2])
return 1
