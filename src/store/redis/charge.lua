-- Settles a batch of charges, in order, in one step of the server.
--
-- KEYS[i]        the i-th cell of the call
-- ARGV[1]        the number of the call, told back
-- ARGV           then for each cell four numbers:
--                  kind   a          b                c
--                  1      emission   burst            refill_every    token_bucket
--                  2      limit      window           0               sliding_window
--                  3      limit      window           0               sliding_log
--                  4      limit      window           0               fixed_window
--                then run after run of equal charges:
--                  's' n  m  (cell cost) x m   judges n charges, spends each that every cell admits
--                  'c' 1  m  (cell cost) x m   spends without judging, up to the limit
--                  'r' at m  (cell cost before) x m   gives back what was spent at the instant
--                                              `at`; `before`: the first number told of the cell
-- returns        the call's number, the server's time, then for each run of 's': how many were admitted, and for each
--                of its cells what it was before the run (limit/reading.rs has the table)
--
-- Every time is in microseconds since the epoch, every number a whole one below 2^53, where
-- arithmetic on doubles is exact.
--
-- Example: two charges of 1 on a fresh cell of 60 in a minute, at 1700000000000000:
--   KEYS  tollgate:x        ARGV  9  2 60 60000000 0  s 2 1 1 1
--   reply 9  1700000000000000  2  28333333 0 0
--   and `tollgate:x` is then `w1 28333333 2 0 60000000`, which ends with the window after this one.
--
-- Promise: all cells of a charge are spent or none; a refusal spends nothing. Every cell is read
-- before the first is written, so a cell that cannot be read, or a server that takes no writes,
-- leaves all as it was. Every write expires at the moment the cell equals an absent one. A stored
-- time ahead of the server's clock (the clock was set back, another server took over) is pulled
-- back to it: nothing is forgotten, and nobody is locked out for longer than a full refill.
-- A cell names the quota it was written under; under another one it is converted, in units.

local clock = redis.call('TIME') -- the one line that asks what time it is
local now = clock[1] * 1000000 + clock[2]

local fmod, floor, ceil, min, max = math.fmod, math.floor, math.ceil, math.min, math.max
local format, match = string.format, string.match
local MOST = 9007199254740991 -- 2^53 - 1
local MOST_UNITS = 4294967295 -- 2^32 - 1

local function quotient(a, b)
  return (a - fmod(a, b)) / b
end

-- a * b / c, rounded up; exact for a < 2^49 and b, c < 2^45
local function scaled(a, b, c)
  local product = a * b
  if product <= MOST then
    local rest = fmod(product, c)
    return (product - rest) / c + (rest > 0 and 1 or 0)
  end
  local result, rest = 0, 0
  for digit = 6, 0, -1 do
    local unit = 128 ^ digit
    local value = rest * 128 + floor(a / unit) * b
    a = fmod(a, unit)
    rest = fmod(value, c)
    result = result * 128 + (value - rest) / c
  end
  return result + (rest > 0 and 1 or 0)
end

local function put(key, text, wait)
  redis.call('SET', key, text, 'PX', format('%.0f', ceil(wait / 1000) + 1))
end

-- token_bucket: `b1 full at emission refill_every`: full again at `full`, written at `at`
local bucket = {}

local function stepped(time, step)
  if step == 0 then return time end
  return time - fmod(time, step)
end

function bucket.load(cell)
  cell.from, cell.spent = stepped(now, cell.c), 0
  local text = redis.call('GET', cell.key)
  if not text then return true end
  local full, at, emission, step = match(text, '^b1 (%d+) (%d+) (%d+) (%d+)$')
  if not full then return false end
  full, at, emission, step = tonumber(full), tonumber(at), tonumber(emission), tonumber(step)
  if emission == 0 or full > MOST or at > MOST then return false end
  local from = stepped(now, step)
  if at > now then
    full = full - (stepped(at, step) - from)
    cell.changed = true
  end
  local spent = full - from
  if spent <= 0 then return true end
  if emission ~= cell.a then
    local part = fmod(spent, emission)
    spent = (spent - part) / emission * cell.a + scaled(part, cell.a, emission)
  end
  cell.spent = min(spent, MOST / 2)
  return true
end

function bucket.fits(cell, cost)
  if cost > cell.b then return 0 end
  return quotient(max(0, cell.a * cell.b - cell.spent), cell.a * cost)
end

function bucket.add(cell, units)
  cell.spent = cell.spent + cell.a * units
end

-- What came back since `at` and would not have without the charge (the bucket would have been full)
-- is not given back again.
function bucket.give(cell, units, at, before)
  local came = max(0, cell.from - stepped(at, cell.c) - before)
  cell.spent = max(0, cell.spent - max(0, cell.a * units - came))
end

function bucket.numbers(cell, reply)
  reply[#reply + 1] = cell.spent
end

function bucket.save(cell)
  if cell.spent == 0 then return redis.call('DEL', cell.key) end
  local full = cell.from + cell.spent
  local idle = full
  if cell.c > 0 then idle = stepped(full + cell.c - 1, cell.c) end
  put(cell.key, format('b1 %.0f %.0f %.0f %.0f', full, now, cell.a, cell.c), idle - now)
end

-- The number of the window that a cell of `window` is in now, and the instant it is read at. One
-- ahead is read at its beginning (the clock may have run back by a moment); further ahead, it is
-- pulled back.
local function turned(cell, window, length)
  local index = quotient(now, length)
  if window == index + 1 then return window, window, window * length end
  if window > index then
    cell.changed = true
    return index, index, now
  end
  return index, window, now
end

-- sliding_window: `w1 window current previous length`
local sliding = {}

function sliding.level(cell)
  local covered = cell.b - fmod(cell.at, cell.b)
  return cell.current + scaled(cell.previous, covered, cell.b)
end

function sliding.load(cell)
  cell.window, cell.current, cell.previous, cell.at = quotient(now, cell.b), 0, 0, now
  local text = redis.call('GET', cell.key)
  if text then
    local window, current, previous, length = match(text, '^w1 (%d+) (%d+) (%d+) (%d+)$')
    if not window then return false end
    window, length = tonumber(window), tonumber(length)
    current, previous = tonumber(current), tonumber(previous)
    if length == 0 or current > MOST_UNITS or previous > MOST_UNITS then return false end
    local index, at
    index, window, at = turned(cell, window, length)
    if index == window + 1 then
      current, previous = 0, current
    elseif index > window then
      current, previous = 0, 0
    end
    if length == cell.b then
      cell.window, cell.current, cell.previous, cell.at = index, current, previous, at
    else
      -- Another grid of windows: the estimate is carried into the current one.
      local spent = current + scaled(previous, length - fmod(at, length), length)
      cell.window, cell.current = quotient(at, cell.b), min(spent, MOST_UNITS)
      if cell.window > quotient(now, cell.b) then cell.at = cell.window * cell.b end
    end
  end
  cell.spent = sliding.level(cell)
  return true
end

function sliding.fits(cell, cost)
  return quotient(max(0, cell.a - cell.spent), cost)
end

function sliding.add(cell, units)
  cell.current, cell.spent = cell.current + units, cell.spent + units
end

function sliding.give(cell, units, at)
  local window = quotient(at, cell.b)
  if cell.window == window then
    cell.current = max(0, cell.current - units)
  elseif cell.window == window + 1 then
    cell.previous = max(0, cell.previous - units)
  end
  cell.spent = sliding.level(cell)
end

function sliding.numbers(cell, reply)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = cell.window, cell.current, cell.previous
end

function sliding.save(cell)
  if cell.current + cell.previous == 0 then return redis.call('DEL', cell.key) end
  local windows = cell.current > 0 and 2 or 1
  local text = format('w1 %.0f %.0f %.0f %.0f', cell.window, cell.current, cell.previous, cell.b)
  put(cell.key, text, (cell.window + windows) * cell.b - now)
end

-- fixed_window: `f1 window count length`
local fixed = {}

function fixed.load(cell)
  cell.window, cell.spent = quotient(now, cell.b), 0
  local text = redis.call('GET', cell.key)
  if not text then return true end
  local window, count, length = match(text, '^f1 (%d+) (%d+) (%d+)$')
  if not window then return false end
  window, count, length = tonumber(window), tonumber(count), tonumber(length)
  if length == 0 or count > MOST_UNITS then return false end
  local index, at
  index, window, at = turned(cell, window, length)
  cell.window = quotient(at, cell.b)
  if index == window then cell.spent = count end
  return true
end

fixed.fits = sliding.fits

function fixed.add(cell, units)
  cell.spent = cell.spent + units
end

function fixed.give(cell, units, at)
  if cell.window == quotient(at, cell.b) then cell.spent = max(0, cell.spent - units) end
end

function fixed.numbers(cell, reply)
  local n = #reply
  reply[n + 1], reply[n + 2] = cell.window, cell.spent
end

function fixed.save(cell)
  if cell.spent == 0 then return redis.call('DEL', cell.key) end
  local text = format('f1 %.0f %.0f %.0f', cell.window, cell.spent, cell.b)
  put(cell.key, text, (cell.window + 1) * cell.b - now)
end

-- sliding_log: a list of `time total`, oldest first; `total` is the sum of all costs so far. The
-- first has left the window: what it says is what the sum begins from.
local log = {}

local function entry(text)
  local time, total = match(text or '', '^(%d+) (%d+)$')
  return tonumber(time), tonumber(total)
end

-- The first place from `low` to `high` whose entry fulfils `wanted`, which all after it do too.
local function first_of(key, low, high, wanted)
  while low < high do
    local middle = floor((low + high) / 2)
    if wanted(entry(redis.call('LINDEX', key, middle))) then high = middle else low = middle + 1 end
  end
  return low
end

local function left(cell, time)
  return min(time, now) + cell.b - now
end

function log.load(cell)
  cell.total, cell.base, cell.added, cell.spent, cell.first = 0, 0, 0, 0, 1
  local last = redis.call('LINDEX', cell.key, -1)
  if not last then return true end
  cell.time, cell.total = entry(last)
  local two = redis.call('LRANGE', cell.key, 0, 1)
  local time, total = entry(two[2])
  local _, base = entry(two[1])
  if not (cell.time and time and base) then return false end
  if cell.time + cell.b <= now then
    -- All have left: it equals an absent one.
    cell.time, cell.total, cell.gone = nil, 0, true
    return true
  end
  if cell.time > now then cell.changed = true end
  if time + cell.b <= now then
    cell.first = first_of(cell.key, 2, redis.call('LLEN', cell.key) - 1, function(one)
      return one + cell.b > now
    end)
    _, base = entry(redis.call('LINDEX', cell.key, cell.first - 1))
  end
  cell.base = base
  cell.spent = cell.total - base
  return true
end

function log.fits(cell, cost)
  return quotient(max(0, cell.a - cell.spent), cost)
end

function log.add(cell, units)
  cell.added, cell.spent = cell.added + units, cell.spent + units
end

-- `above`: how far the refused charge is above the limit.
function log.numbers(cell, reply, above)
  local reset, fits = 0, 0
  if cell.added > 0 then reset = cell.b elseif cell.time then reset = left(cell, cell.time) end
  if above > cell.spent - cell.added then
    fits = cell.b
  elseif above > 0 then
    local place = first_of(cell.key, cell.first, redis.call('LLEN', cell.key) - 1, function(_, sum)
      return sum - cell.base >= above
    end)
    fits = left(cell, (entry(redis.call('LINDEX', cell.key, place))))
  end
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = cell.spent, reset, fits
end

function log.save(cell)
  local text = format('%.0f %.0f', now, cell.total + cell.added)
  if cell.gone then redis.call('DEL', cell.key) end
  if not cell.time then
    redis.call('RPUSH', cell.key, '0 0', text)
  else
    if cell.first > 1 then redis.call('LTRIM', cell.key, cell.first - 1, -1) end
    -- What is ahead of the clock, and what is of this very instant, is one entry.
    while cell.time >= now and redis.call('LLEN', cell.key) > 1 do
      redis.call('RPOP', cell.key)
      cell.time = entry(redis.call('LINDEX', cell.key, -1))
    end
    redis.call('RPUSH', cell.key, text)
  end
  redis.call('PEXPIRE', cell.key, format('%.0f', ceil(cell.b / 1000) + 1))
end

-- Directly on the list: calls that give back do nothing else.
function log.give(cell, units, at)
  local later = {}
  local time, total = entry(redis.call('LINDEX', cell.key, -1))
  while time and time > at do
    later[#later + 1] = { time, total }
    redis.call('RPOP', cell.key)
    time, total = entry(redis.call('LINDEX', cell.key, -1))
  end
  local gone = 0
  if time == at and redis.call('LLEN', cell.key) > 1 then
    redis.call('RPOP', cell.key)
    local _, before = entry(redis.call('LINDEX', cell.key, -1))
    gone = min(units, total - before)
    if total - gone > before then
      redis.call('RPUSH', cell.key, format('%.0f %.0f', time, total - gone))
    end
  end
  for n = #later, 1, -1 do
    redis.call('RPUSH', cell.key, format('%.0f %.0f', later[n][1], later[n][2] - gone))
  end
  local newest = entry(redis.call('LINDEX', cell.key, -1))
  if redis.call('LLEN', cell.key) < 2 then
    redis.call('DEL', cell.key)
  else
    redis.call('PEXPIRE', cell.key, format('%.0f', ceil(left(cell, newest) / 1000) + 1))
  end
end

local KINDS = { bucket, sliding, log, fixed }

local cells, next_arg = {}, 2
for n, key in ipairs(KEYS) do
  local cell = {
    key = key,
    kind = KINDS[tonumber(ARGV[next_arg])],
    a = tonumber(ARGV[next_arg + 1]),
    b = tonumber(ARGV[next_arg + 2]),
    c = tonumber(ARGV[next_arg + 3]),
  }
  next_arg = next_arg + 4
  if not cell.kind.load(cell) then
    return redis.error_reply('TOLLGATE the cell ' .. key .. ' was not written by tollgate')
  end
  cells[n] = cell
end

local reply = { tonumber(ARGV[1]), now }

-- How many of `n` charges every cell of the run admits.
local function admitted(n, m)
  for i = next_arg, next_arg + 2 * m - 1, 2 do
    local cell, cost = cells[tonumber(ARGV[i])], tonumber(ARGV[i + 1])
    if cost > 0 then n = min(n, cell.kind.fits(cell, cost)) end
  end
  return n
end

local function settle(n, m)
  local many = admitted(n, m)
  reply[#reply + 1] = many
  for i = next_arg, next_arg + 2 * m - 1, 2 do
    local cell, cost = cells[tonumber(ARGV[i])], tonumber(ARGV[i + 1])
    local above = 0
    if many < n and cost > 0 and cost <= cell.a then
      above = max(0, cell.spent + (many + 1) * cost - cell.a)
    end
    cell.kind.numbers(cell, reply, above)
    if many > 0 and cost > 0 then
      cell.kind.add(cell, many * cost)
      cell.changed = true
    end
  end
end

while ARGV[next_arg] do
  local op, n, m = ARGV[next_arg], tonumber(ARGV[next_arg + 1]), tonumber(ARGV[next_arg + 2])
  next_arg = next_arg + 3
  if op == 's' then
    settle(n, m)
    next_arg = next_arg + 2 * m
  elseif op == 'c' then
    for i = next_arg, next_arg + 2 * m - 1, 2 do
      local cell, units = cells[tonumber(ARGV[i])], tonumber(ARGV[i + 1])
      cell.kind.add(cell, min(units, cell.kind.fits(cell, 1)))
      cell.changed = true
    end
    next_arg = next_arg + 2 * m
  else
    for i = next_arg, next_arg + 3 * m - 1, 3 do
      local cell, units = cells[tonumber(ARGV[i])], tonumber(ARGV[i + 1])
      cell.kind.give(cell, units, n, tonumber(ARGV[i + 2]))
      cell.changed = cell.kind ~= log
    end
    next_arg = next_arg + 3 * m
  end
end

for _, cell in ipairs(cells) do
  if cell.changed then cell.kind.save(cell) end
end

return reply
