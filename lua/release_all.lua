-- Gives a lease on several keys back: deletes each of them that holds our token.
--
-- KEYS     the lease's keys
-- ARGV[1]  our token
-- Replies  1 all of them were deleted | of the first one that was not ours: 0 it holds something
--          else | -1 there is no such key
-- Errors   nothing was deleted
local ours, all = {}, 1
for _, key in ipairs(KEYS) do
  local token = redis.pcall('GET', key)
  if type(token) == 'table' and not string.find(token.err, 'WRONGTYPE', 1, true) then
    return token
  elseif token == ARGV[1] then
    ours[#ours + 1] = key
  elseif all == 1 then
    all = token and 0 or -1
  end
end
if #ours > 0 then
  redis.call('DEL', unpack(ours))
end
return all
