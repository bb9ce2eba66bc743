-- The line of those who wait for a lease in order of arrival, beside its key. Whoever gives the
-- lease back grants it to the first: the key never gets free in between.
--
-- A ticket is `process:number:ttl:token`; if its holder wants a fencing number, an `f` stands behind
-- the number. Its holder's process hears of a grant on the channel
-- `redlease:process`, unless it can't listen: then the process is `-`. A granted ticket stays in
-- the line, marked by a negative place, until its holder accepts it by joining again. If he doesn't
-- within the window, the lease is granted to the next one, and the tickets of his process leave the
-- line; those of its waiters who live join again, in their old places.
--
-- KEYS[1]  the lease's key
-- KEYS[2]  its line, a sorted set of tickets by arrival
-- KEYS[3]  the counter of our fencing number, if we want one
-- ARGV[1]  what to do:
--            try      take the lease if it is free and nobody waits
--            join     the same, else wait in line; or accept a grant
--            release  give it back
--            leave    give up waiting, and the lease with it, if it was granted meanwhile
-- ARGV[2]  our process: a grant within it is told by the reply. `-`: none is, but to our ticket
-- ARGV[3]  the window in milliseconds
-- ARGV[4]  how long the line lasts without a sign of life, in milliseconds
-- ARGV[5]  our ticket; to release: our token
-- ARGV[6]  to join: our place from an earlier time, or 0
-- Replies  {1 the lease is ours, or was given back | 0 it isn't | -1 there is no such key,
--           number of the ticket of our process that it was granted to, or 0; negative: it has to
--           be accepted, for that is when a fencing number is drawn,
--           our place, as text,
--           1 if we had a place, but our ticket had left the line | 0,
--           1 if ours is the first ticket in line | 0,
--           our fencing number, as text, if the lease is ours and we want one}
-- Errors   WRONGTYPE if the key is no string | ERR for a bad counter, and then nothing has changed
local key, line = KEYS[1], KEYS[2]
local verb, ours, window = ARGV[1], ARGV[2], tonumber(ARGV[3])

local function parse(ticket)
  return string.match(ticket, '^([^:]+):(%d+)(f?):(%d+):(.*)$')
end

local function draw_number(fenced)
  if fenced == '' then
    return ''
  end
  redis.call('INCR', KEYS[3])
  return redis.call('GET', KEYS[3])
end

-- Takes the ticket out of the line, and all others of its process; but ours lives: it is asking.
local function dismiss(ticket, process)
  redis.call('ZREM', line, ticket)
  if process == '-' or process == ours then
    return
  end
  for _, other in ipairs(redis.call('ZRANGE', line, 0, -1)) do
    if parse(other) == process then
      redis.call('ZREM', line, other)
    end
  end
end

-- Sets the key to the token of the first who lives, wherever it stood before. Returns the number of
-- his ticket if it is of our process, negative if he has to accept it, otherwise 0; false if there is
-- nobody, or no memory.
local function grant()
  while true do
    -- A line of another type is somebody else's, and no reason to keep the lease.
    local first = redis.pcall('ZRANGE', line, 0, 0, 'WITHSCORES')
    if not first[1] then
      return false
    end
    local ticket, place = first[1], tonumber(first[2])
    local process, number, fenced, ttl, token = parse(ticket)
    local mine = ticket == ARGV[5]
    local near = mine or process == ours and ours ~= '-'
    local at_once = mine or near and fenced == ''
    local lives = process and place > 0
    if lives and not near and process ~= '-' then
      -- An error is no sign of death: somebody may not be allowed to publish.
      lives = redis.pcall('PUBLISH', 'redlease:' .. process, number) ~= 0
    end
    if lives then
      -- The ttl counts from the acceptance. A short one leaves no time for that.
      local set = redis.pcall('SET', key, token, 'PX', at_once and ttl or window)
      if set.err then
        return false
      end
      if at_once then
        redis.call('ZREM', line, ticket)
        return tonumber(number)
      end
      redis.call('ZADD', line, -place, ticket)
      return near and -tonumber(number) or 0
    end
    dismiss(ticket, process)
  end
end

local function give_back()
  local granted = grant()
  if not granted then
    redis.call('DEL', key)
  end
  return granted or 0
end

if verb == 'release' then
  local held = redis.call('GET', key)
  if held ~= ARGV[5] then
    return {held and 0 or -1, 0, '0', 0, 0, ''}
  end
  return {1, give_back(), '0', 0, 0, ''}
end

local ticket = ARGV[5]
local _, number, fenced, ttl, token = parse(ticket)

if verb == 'leave' then
  redis.call('ZREM', line, ticket)
  if redis.call('GET', key) ~= token then
    return {0, 0, '0', 0, 0, ''}
  end
  return {1, give_back(), '0', 0, 0, ''}
end

if fenced == 'f' then
  local counter = redis.call('GET', KEYS[3])
  -- As text, since Lua's own numbers end at 2^53.
  if counter and not (string.match(counter, '^%d+$') and (#counter < 19 or
      #counter == 19 and counter < '9223372036854775807')) then
    return redis.error_reply('ERR the counter of the fencing numbers is full or no number')
  end
end

local granted = 0
if redis.call('EXISTS', key) == 0 then
  -- Those who wait come first, if they live.
  if verb == 'try' then
    granted = grant() or 0
  end
  if redis.call('EXISTS', key) == 0 and redis.call('EXISTS', line) == 0 then
    local fence = draw_number(fenced)
    redis.call('SET', key, token, 'PX', ttl)
    return {1, 0, '0', 0, 0, fence}
  end
elseif verb == 'join' and redis.pcall('GET', key) == token then
  local fence = draw_number(fenced)
  redis.call('PEXPIRE', key, ttl)
  redis.call('ZREM', line, ticket)
  return {1, 0, '0', 0, 0, fence}
end
if verb == 'try' then
  return {0, granted, '0', 0, 0, ''}
end

-- Places are microseconds since the epoch, so that they grow from line to line.
local place = tonumber(ARGV[6])
if place == 0 then
  local now = redis.call('TIME')
  place = now[1] * 1000000 + now[2]
  local last = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')
  if last[1] and tonumber(last[2]) >= place then
    place = last[2] + 1
  end
end
local new = redis.call('ZADD', line, place, ticket)
redis.call('PEXPIRE', line, ARGV[4])
if redis.call('EXISTS', key) == 0 then
  granted = grant() or 0
end
if granted == tonumber(number) then
  return {1, 0, '0', 0, 0, draw_number(fenced)}
end
local first = redis.call('ZRANGE', line, 0, 0)[1] == ticket
return {0, granted, string.format('%.0f', place), tonumber(ARGV[6]) ~= 0 and new or 0,
        first and 1 or 0, ''}
