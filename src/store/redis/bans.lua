-- Records bans of one node, and reports bans that other nodes made.
--
-- KEYS[1]        a sorted set: for each key, when a node last reported a ban of it
-- KEYS[2]        a hash: for each key `level until forgive since`, that is, the number of bans that are not forgiven, the end
--                of the latest ban, the time that forgives one ban, and the number of the latest change of operators that
--                forgave denials of the key (key_rules.lua)
-- KEYS[3]        a sorted set: for each key, the time from which nothing of its bans matters: they are forgiven, and no denial
--                counts any more that led to one
-- KEYS[4]        the latest time, and by how much it is ahead of the server's clock, which was set back so far: `time ahead`
-- ARGV[1]        the time until which the node has been told everything, and from which the node asks for reported bans
-- ARGV           then, for each new ban: key, length of a first ban, longest ban, forgive, how long a denial counts, age,
--                and the number of the latest change of operators that its node had made
-- returns        ARGV[1] of the next call, then, for each key of which a ban was reported since ARGV[1]: the key, when it was
--                reported last, and the rest of its ban; what is left of one that has ended is negative
--
-- Times are in microseconds since the epoch, spans in microseconds. They do not go back (common.lua): so no ban lasts longer or
-- begins anew, and what is reported later has a later time. Example: `0 k 60000000 60000000 60000000 30000000 1000 7` records that
-- `k` was banned for a minute one millisecond ago, by a node that had made change 7.
--
-- A ban doubles with each ban that is not forgiven, up to the longest one, and begins when its node made it. So a ban
-- that arrives late or twice bans no key for longer. A key that is banned is not banned again by another node. A ban that was
-- lifted (key_rules.lua) is kept as one that ended then, so it does not come back by a report that arrives late. A ban does not
-- count for denials that were forgiven before its node had heard so; that node alone is told that it has ended. Bans that have
-- ended are told too: a node that did not hear of one in time shall forget the denials that led to it.

local call, ARGV, KEYS = redis.call, ARGV, KEYS
local floor, max, min = math.floor, math.max, math.min
local format, match = string.format, string.match
local MAX_KEY = 32 -- hexadecimal digits
local MAX_BAN = 366 * 86400 * 1000000 -- the longest ban that a configuration can have
local MAX_REPORTED = 128 -- the largest number of keys in a reply
local MAX_KEPT = 65536 -- the largest number of keys; the key that is forgiven first is dropped
local MAX_DROPPED = 256 -- keys that a call drops; it adds fewer
local MAX_READS = 8 -- how often a call reads on, when it has found keys that have no ban

delete_foreign({ 'zset', 'hash', 'zset', 'string' })
local time = read_time(KEYS[4], ARGV[1])
local now = time.now

local function read(key)
  local text = call('HGET', KEYS[2], key)
  local level, till, forgive, since = match(text or '', '^(%d+) (%d+) (%d+) (%d+)$')
  level, till, since = tonumber(level) or 0, tonumber(till) or 0, tonumber(since) or 0
  -- What another program wrote, or a node by a wrong clock, bans nobody and forgives nothing.
  if till - now > MAX_BAN then level, till = 0, 0 end
  if since - now > MAX_AHEAD then since = 0 end
  return level, till, tonumber(forgive) or 1, since
end

local function drop(keys)
  for n = 1, #keys do
    call('ZREM', KEYS[1], keys[n])
    call('HDEL', KEYS[2], keys[n])
    call('ZREM', KEYS[3], keys[n])
  end
end

local reply = { '' }
local function tell(key, reported_at, till)
  for _, value in ipairs({ key, reported_at, format('%.0f', till - now) }) do reply[#reply + 1] = value end
end

drop(call('ZRANGEBYSCORE', KEYS[3], '-inf', format('%.0f', now), 'LIMIT', 0, MAX_DROPPED))
drop(call('ZRANGEBYSCORE', KEYS[3], format('(%.0f', now + MAX_AHEAD), '+inf', 'LIMIT', 0, MAX_DROPPED))
for n = 2, #ARGV - 6, 7 do
  local key, ban = ARGV[n], tonumber(ARGV[n + 1])
  local longest, forgive = tonumber(ARGV[n + 2]), max(1, tonumber(ARGV[n + 3]))
  local level, till, _, since = read(key)
  local within, at = tonumber(ARGV[n + 4]), now - tonumber(ARGV[n + 5])
  local is_forgiven = tonumber(ARGV[n + 6]) < since
  if till <= at and not is_forgiven then
    level = max(0, level - floor((at - till) / forgive))
    till = at + min(max(ban, longest), ban * 2 ^ min(level, 40))
    level = level + 1
    call('HSET', KEYS[2], key, format('%d %.0f %.0f %.0f', level, till, forgive, since))
    local over = min(till + max(forgive * level, 2 * within), now + MAX_AHEAD)
    call('ZADD', KEYS[3], format('%.0f', over), key)
  end
  if till <= now and is_forgiven then
    -- Other nodes have counted no denial that was forgiven.
    tell(key, format('%.0f', now), till)
  else
    -- Every node receives the recorded ban again, so that a node which banned the key later learns of it.
    call('ZADD', KEYS[1], format('%.0f', now), key)
  end
end
local over = call('ZCARD', KEYS[3]) - MAX_KEPT
if over > 0 then drop(call('ZRANGE', KEYS[3], 0, min(over, MAX_DROPPED) - 1)) end
call('ZREMRANGEBYRANK', KEYS[1], 0, -MAX_KEPT - 1)
if call('ZCARD', KEYS[3]) > 0 then
  keep_time(KEYS[4], time)
  if #ARGV > 1 then expire_bans({ KEYS[1], KEYS[2], KEYS[3] }, now) end
end

-- Tells bans that were reported since a time. Returns when to go on, and how many keys were looked at.
local function report(since)
  local reported = call('ZRANGEBYSCORE', KEYS[1], format('%.0f', since), format('%.0f', now),
    'WITHSCORES', 'LIMIT', 0, MAX_REPORTED)
  for n = 1, #reported, 2 do
    local _, till, _, forgiven = read(reported[n])
    if #reported[n] > MAX_KEY or not match(reported[n], '^%x+$') or (till == 0 and forgiven == 0) then
      drop({ reported[n] })
    else
      tell(reported[n], reported[n + 1], till)
    end
  end
  local following = now
  if #reported == 2 * MAX_REPORTED then
    -- With more bans of the same microsecond the next call would be told the same.
    following = max(tonumber(reported[#reported]), tonumber(reported[2]) + 1)
  end
  return following, #reported / 2
end

-- A store that has lost its time may have told other nodes of bans as of an earlier one.
local since = time.is_lost and 0 or time.told
for _ = 1, MAX_READS do
  local seen
  since, seen = report(since)
  if seen < MAX_REPORTED or #reply > MAX_REPORTED then break end
end
reply[1] = format('%.0f', since)
return reply
