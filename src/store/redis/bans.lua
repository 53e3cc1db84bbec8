-- Tells of bans, and hears of those that other nodes made.
--
-- KEYS[1]        when news of each key last came: a sorted set, by the instant
-- KEYS[2]        a hash, of each key `level until forgive`: bans that are not forgiven, the instant
--                at which the last ends, the time that forgives one
-- KEYS[3]        when nothing of a key will be left: a sorted set, by the instant
-- ARGV[1]        since when to tell
-- ARGV           then for each new ban: key, ban, most, forgive, how long ago it was made
-- returns        since when to ask next, then for each key with news since ARGV[1] that is still
--                banned: the key, and for how long
--
-- Every time is in microseconds since the epoch. A ban is twice as long for each that is not
-- forgiven, up to `most`, and begins when its node made it: news that come late, or twice, ban no key
-- for longer. Who is banned already is not banned again by another node's news.

local call, ARGV, KEYS = redis.call, ARGV, KEYS
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local floor, max, min = math.floor, math.max, math.min
local format, match = string.format, string.match
local MOST_TOLD = 128 -- in one answer
local MOST_KEPT = 65536 -- keys; the one that is over first makes room

local function read(key)
  local text = call('HGET', KEYS[2], key)
  local level, till, forgive = match(text or '', '^(%d+) (%d+) (%d+)$')
  return tonumber(level) or 0, tonumber(till) or 0, tonumber(forgive) or 1
end

local function drop(keys)
  for n = 1, #keys do
    call('ZREM', KEYS[1], keys[n])
    call('HDEL', KEYS[2], keys[n])
    call('ZREM', KEYS[3], keys[n])
  end
end

drop(call('ZRANGEBYSCORE', KEYS[3], '-inf', format('%.0f', now), 'LIMIT', 0, 256))
for n = 2, #ARGV - 4, 5 do
  local key, ban = ARGV[n], tonumber(ARGV[n + 1])
  local most, forgive = tonumber(ARGV[n + 2]), max(1, tonumber(ARGV[n + 3]))
  local level, till = read(key)
  local at = now - tonumber(ARGV[n + 4])
  if till <= at then
    level = max(0, level - floor((at - till) / forgive))
    till = at + min(max(ban, most), ban * 2 ^ min(level, 40))
    level = level + 1
    call('HSET', KEYS[2], key, format('%d %.0f %.0f', level, till, forgive))
    call('ZADD', KEYS[3], format('%.0f', till + forgive * level), key)
  end
  -- Told again to everybody, and so to the node that was late with its news.
  call('ZADD', KEYS[1], format('%.0f', now), key)
end
local over = call('ZCARD', KEYS[3]) - MOST_KEPT
if over > 0 then drop(call('ZRANGE', KEYS[3], 0, over - 1)) end
local last = call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')[2]
if #ARGV > 1 and last then
  for n = 1, 3 do call('PEXPIRE', KEYS[n], format('%.0f', max(1, (last - now) / 1000 + 1000))) end
end

local told = call('ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, MOST_TOLD)
local reply = { format('%.0f', #told < 2 * MOST_TOLD and now or told[#told]) }
for n = 1, #told, 2 do
  local _, till = read(told[n])
  if till > now then
    reply[#reply + 1] = told[n]
    reply[#reply + 1] = format('%.0f', till - now)
  end
end
return reply
