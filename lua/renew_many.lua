-- Renews many leases at once: sets a new time to live for each key that holds its token, and tells
-- of the others. Keys that stand together with one token are one lease: they are renewed, or else
-- those that are ours are deleted, since it is lost. Never creates a key.
--
-- KEYS[i]          the lease's key
-- ARGV[i]          its token
-- ARGV[#KEYS + i]  its ttl in milliseconds; or ARGV[#KEYS + 1] alone, the ttl of all
-- Replies          a number for each lease that is not ours, and so was not renewed:
--                  i if its key holds something else, -i if there is no such key
-- Errors           ERR for a bad ttl, and then nothing was renewed
local count = #KEYS
for i = count + 1, #ARGV do
  local ttl = tonumber(ARGV[i])
  if not ttl or ttl <= 0 then
    return redis.error_reply('ERR ttl must be positive')
  end
end

-- A token, false if there is no key, or an error; a key that is no string is not ours.
local function get(key)
  local token = redis.pcall('GET', key)
  if type(token) == 'table' and string.find(token.err, 'WRONGTYPE', 1, true) then
    return ''
  end
  return token
end

local call = redis.call
local tokens = redis.pcall('MGET', unpack(KEYS))
if tokens.err then -- denied to a user who needs no more than GET for all else
  tokens = {}
end
local common_ttl = #ARGV == count + 1 and ARGV[count + 1]
local not_ours = {}
local first = 1
while first <= count do
  local last, held = first, true
  while last < count and ARGV[last + 1] == ARGV[first] do
    last = last + 1
  end
  for i = first, last do
    -- To MGET a key that is no string is as good as none.
    local token = tokens[i] or get(KEYS[i])
    if type(token) == 'table' then
      return token
    elseif token ~= ARGV[i] then
      held = false
      not_ours[#not_ours + 1] = token and i or -i
    end
    tokens[i] = token
  end
  for i = first, last do
    if held then
      call('PEXPIRE', KEYS[i], common_ttl or ARGV[count + i])
    elseif tokens[i] == ARGV[i] then
      call('DEL', KEYS[i])
    end
  end
  first = last + 1
end
return not_ours
