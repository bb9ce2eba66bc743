-- Gives a lease on several keys back: deletes each of them that holds our token.
--
-- KEYS     the lease's keys
-- ARGV[1]  our token
-- Replies  1 all of them were deleted | of the first one that was not ours: 0 it holds something
--          else | -1 there is no such key
local all = 1
for _, key in ipairs(KEYS) do
  local token = redis.pcall('GET', key) -- a table for a key that is no string
  if token == ARGV[1] then
    redis.call('DEL', key)
  elseif all == 1 then
    all = token and 0 or -1
  end
end
return all
