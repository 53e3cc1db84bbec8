-- Records bans of one node, and reports bans that other nodes made.
--
-- KEYS[1]        a sorted set: for each key, when a node last reported a ban of it
-- KEYS[2]        a hash: for each key `level until forgive`, that is, the number of bans that are not forgiven, the end
--                of the latest ban, and the time that forgives one ban
-- KEYS[3]        a sorted set: for each key, the time from which nothing of its bans matters: they are forgiven, and no denial
--                counts any more that led to one
-- KEYS[4]        the latest time, and by how much it is ahead of the server's clock, which was set back so far: `time ahead`
-- ARGV[1]        the time until which the node has been told everything, and from which the node asks for reported bans
-- ARGV           then, for each new ban: key, length of a first ban, longest ban, forgive, how long a denial counts, age
-- returns        ARGV[1] of the next call, then, for each key of which a ban was reported since ARGV[1]: the key, when it was
--                reported last, and the rest of its ban; what is left of one that has ended is negative
--
-- Times are in microseconds since the epoch, spans in microseconds. They do not go back (common.lua): so no ban lasts longer or
-- begins anew, and what is reported later has a later time. Example: `0 k 60000000 60000000 60000000 30000000 1000` records that `k`
-- was banned for a minute one millisecond ago.
--
-- A ban doubles with each ban that is not forgiven, up to the longest one, and begins when its node made it. So a ban
-- that arrives late or twice bans no key for longer. A key that is banned is not banned again by another node. A ban that was
-- lifted (key_rules.lua) is kept as one that ended then, so it does not come back by a report that arrives late. Bans that have
-- ended are told too: a node that did not hear of one in time shall forget the denials that led to it.

local call, ARGV, KEYS = redis.call, ARGV, KEYS
local floor, max, min = math.floor, math.max, math.min
local format, match = string.format, string.match
local MAX_KEY = 32 -- hexadecimal digits
local MAX_REPORTED = 128 -- the largest number of keys in a reply
local MAX_KEPT = 65536 -- the largest number of keys; the key that is forgiven first is dropped

delete_foreign({ 'zset', 'hash', 'zset', 'string' })
local time = read_time(KEYS[4], ARGV[1])
local now = time.now

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
for n = 2, #ARGV - 5, 6 do
  local key, ban = ARGV[n], tonumber(ARGV[n + 1])
  local longest, forgive = tonumber(ARGV[n + 2]), max(1, tonumber(ARGV[n + 3]))
  local level, till = read(key)
  local within, at = tonumber(ARGV[n + 4]), now - tonumber(ARGV[n + 5])
  if till <= at then
    level = max(0, level - floor((at - till) / forgive))
    till = at + min(max(ban, longest), ban * 2 ^ min(level, 40))
    level = level + 1
    call('HSET', KEYS[2], key, format('%d %.0f %.0f', level, till, forgive))
    call('ZADD', KEYS[3], format('%.0f', till + max(forgive * level, 2 * within)), key)
  end
  -- Every node receives the recorded ban again, so that a node which banned the key later learns of it.
  call('ZADD', KEYS[1], format('%.0f', now), key)
end
local over = call('ZCARD', KEYS[3]) - MAX_KEPT
if over > 0 then drop(call('ZRANGE', KEYS[3], 0, over - 1)) end
local last = call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')[2]
if last then
  local lifetime = format('%.0f', max(1, (last - now) / 1000 + 1000))
  keep_time(KEYS[4], time)
  if #ARGV > 1 then
    for n = 1, 3 do call('PEXPIRE', KEYS[n], lifetime) end
  end
end

-- A store that has lost its time may have told other nodes of bans as of an earlier one.
local since = time.is_lost and 0 or time.told
local reported = call('ZRANGEBYSCORE', KEYS[1], format('%.0f', since), format('%.0f', now),
  'WITHSCORES', 'LIMIT', 0, MAX_REPORTED)
local following = now
if #reported == 2 * MAX_REPORTED then
  -- With more bans of the same microsecond the next call would be told the same.
  following = max(tonumber(reported[#reported]), tonumber(reported[2]) + 1)
end
local reply = { format('%.0f', following) }
for n = 1, #reported, 2 do
  local _, till = read(reported[n])
  if #reported[n] > MAX_KEY or not match(reported[n], '^%x+$') then
    drop({ reported[n] })
  elseif till > 0 then
    for _, value in ipairs({ reported[n], reported[n + 1], format('%.0f', till - now) }) do
      reply[#reply + 1] = value
    end
  end
end
return reply
