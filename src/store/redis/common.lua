-- What the scripts of bans and of rules have in common (bans.lua, key_rules.lua); it stands before each of them.
--
-- Times are in microseconds since the epoch, spans in microseconds. Times do not go back: while the server's clock is behind what
-- it was before (it was set back, or another server took over), or behind what a node was told, time goes on from there.

local KEEP = 31 * 86400 * 1000 -- milliseconds that the time is kept after the last ban or rule
local MAX_AHEAD = 20 * 366 * 86400 * 1000000 -- no clock is set back by more; another program wrote it

-- Deletes keys that other programs have written, which may be anything. `kinds`: the type of each key, by its number.
local function delete_foreign(kinds)
  for n, kind in pairs(kinds) do
    local found = redis.call('TYPE', KEYS[n]).ok
    if found ~= kind and found ~= 'none' then redis.call('DEL', KEYS[n]) end
  end
end

-- The time, from the key that keeps it as `time ahead`: the latest one, and by how much it is ahead of the server's clock.
-- `told`: the latest time that a store has told the node, as text. Returns a table:
--   now      the time
--   ahead    by how much it is ahead of the server's clock
--   told     as a number; zero: none, or one that no store can have told
--   is_lost  a store told of a later time than this one knows, so it has lost it
local function read_time(key, told)
  local clock = redis.call('TIME')
  local server, max = clock[1] * 1000000 + clock[2], math.max
  -- No more than a time is long: another program may have written anything.
  local kept = redis.call('GETRANGE', key, 0, 63)
  local latest, ahead = string.match(kept, '^(%d+) (%d+)$')
  latest, ahead, told = tonumber(latest) or 0, tonumber(ahead) or 0, tonumber(told) or 0
  if max(latest - server, ahead) > MAX_AHEAD then latest, ahead = 0, 0 end
  if told - server > MAX_AHEAD then told = 0 end
  local known = max(ahead, latest - server)
  ahead = max(known, told - server)
  return { now = server + ahead, ahead = ahead, told = told, is_lost = ahead > known }
end

-- Has the keys of bans expire when nothing in them matters any more. The last one is the sorted set by that time.
local function expire_bans(keys, now)
  local last = redis.call('ZRANGE', keys[#keys], -1, -1, 'WITHSCORES')[2]
  local span = last and math.min(math.max(1, (last - now) / 1000 + 1000), MAX_AHEAD / 1000) or 1
  for n = 1, #keys do redis.call('PEXPIRE', keys[n], string.format('%.0f', span)) end
end

-- Keeps the time. A store that is full refuses it, and still tells of what it knows.
local function keep_time(key, time)
  redis.pcall('SET', key, string.format('%.0f %.0f', time.now, time.ahead), 'PX', KEEP)
end

