-- Renews many leases at once: sets a new time to live for each key that holds its token, and tells
-- of the others. Never creates a key.
--
-- KEYS[i]        the lease's key
-- ARGV[2*i - 1]  its token
-- ARGV[2*i]      its ttl in milliseconds
-- Replies        a number for each lease that is not ours, and so was not renewed:
--                i if its key holds something else, -i if there is no such key
-- Errors         ERR for a bad ttl, and then nothing was renewed
for i = 1, #KEYS do
  local ttl = tonumber(ARGV[2 * i])
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

local tokens = redis.pcall('MGET', unpack(KEYS))
local denied = tokens.err -- to a user who needs no more than GET for all else
local not_ours = {}
for i = 1, #KEYS do
  local token = not denied and tokens[i]
  if not token then -- to MGET a key that is no string is as good as none
    token = get(KEYS[i])
    if type(token) == 'table' then
      return token
    end
  end
  if token == ARGV[2 * i - 1] then
    redis.call('PEXPIRE', KEYS[i], ARGV[2 * i])
  else
    not_ours[#not_ours + 1] = token and i or -i
  end
end
return not_ours
