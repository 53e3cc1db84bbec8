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
--                  5      emission   burst            max_delay       token_bucket that lets wait
--                then run after run of equal charges:
--                  's' n  m  (cell cost) x m   judges n charges, spends each that every cell admits
--                  'c' 1  m  (cell cost) x m   spends without judging, up to the limit
--                  'd' 1  m  (cell cost) x m   spends without judging, above the limit too
--                  'r' at m  (cell cost before) x m   gives back what was spent at the instant
--                                              `at`; `before`: the first number told of the cell
-- returns        the call's number, the server's time, then for each run of 's': how many were
--                admitted, and for each of its cells what it was before the run
--                (limit/reading.rs has the table)
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
-- A cell names the quota it was written under; under another one it is converted, in units, and
-- written so, whatever becomes of the charge: it refills as whoever met it last says.

local call, ARGV, KEYS = redis.call, ARGV, KEYS
local clock = call('TIME') -- the one line that asks what time it is
local now = clock[1] * 1000000 + clock[2]

local fmod, floor, ceil, min, max = math.fmod, math.floor, math.ceil, math.min, math.max
local format, match = string.format, string.match
local BUCKET, SLIDING, LOG, DELAYED = '1', '2', '3', '5'
local MOST = 9007199254740991 -- 2^53 - 1
local MOST_UNITS = 4294967295 -- 2^32 - 1

-- A script's functions are made anew each time it runs: few here, and what most calls need is
-- written where it is used.

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

-- `time`, or the last refill before it
local function stepped(time, step)
  if step == 0 then return time end
  return time - fmod(time, step)
end

-- What a sliding_log needs, made when a call names one. It is a list of `time total`, oldest first;
-- `total` is the sum of all costs so far. The first has left the window: what it says is what the
-- sum begins from.
local function make_log()
  local kind = {}

  local function entry(text)
    local time, total = match(text or '', '^(%d+) (%d+)$')
    return tonumber(time), tonumber(total)
  end

  -- The first place from `low` to `high` whose entry fulfils `wanted`, which all after it do too.
  local function first_of(key, low, high, wanted)
    while low < high do
      local middle = floor((low + high) / 2)
      local time, total = entry(call('LINDEX', key, middle))
      if wanted(time or 0, total or 0) then high = middle else low = middle + 1 end
    end
    return low
  end

  local function left(cell, time)
    return min(time, now) + cell.b - now
  end

  function kind.load(cell)
    cell.total, cell.base, cell.first = 0, 0, 1
    local last = call('LINDEX', cell.key, -1)
    if not last then return true end
    cell.time, cell.total = entry(last)
    local two = call('LRANGE', cell.key, 0, 1)
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
      cell.first = first_of(cell.key, 2, call('LLEN', cell.key) - 1, function(one)
        return one + cell.b > now
      end)
      _, base = entry(call('LINDEX', cell.key, cell.first - 1))
      if not base then return false end
    end
    cell.base = base
    cell.spent = cell.total - base
    return true
  end

  -- `above`: how far the refused charge is above the limit.
  function kind.numbers(cell, reply, above)
    local reset, fits = 0, 0
    if cell.current > 0 then reset = cell.b elseif cell.time then reset = left(cell, cell.time) end
    if above > cell.spent - cell.current then
      fits = cell.b
    elseif above > 0 then
      local place = first_of(cell.key, cell.first, call('LLEN', cell.key) - 1, function(_, sum)
        return sum - cell.base >= above
      end)
      fits = left(cell, entry(call('LINDEX', cell.key, place)) or now)
    end
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = cell.spent, reset, fits
  end

  function kind.save(cell)
    local text = format('%.0f %.0f', now, cell.total + cell.current)
    if cell.gone then call('DEL', cell.key) end
    if not cell.time then
      call('RPUSH', cell.key, '0 0', text)
    else
      if cell.first > 1 then call('LTRIM', cell.key, cell.first - 1, -1) end
      -- What is ahead of the clock, and what is of this very instant, is one entry.
      while cell.time >= now and call('LLEN', cell.key) > 1 do
        call('RPOP', cell.key)
        cell.time = entry(call('LINDEX', cell.key, -1))
      end
      call('RPUSH', cell.key, text)
    end
    call('PEXPIRE', cell.key, format('%.0f', ceil(cell.b / 1000) + 1))
  end

  -- Directly on the list: calls that give back do nothing else.
  function kind.give(cell, units, at)
    local later = {}
    local time, total = entry(call('LINDEX', cell.key, -1))
    while time and time > at do
      later[#later + 1] = { time, total }
      call('RPOP', cell.key)
      time, total = entry(call('LINDEX', cell.key, -1))
    end
    local gone = 0
    if time == at and call('LLEN', cell.key) > 1 then
      call('RPOP', cell.key)
      local _, before = entry(call('LINDEX', cell.key, -1))
      gone = min(units, total - before)
      if total - gone > before then
        call('RPUSH', cell.key, format('%.0f %.0f', time, total - gone))
      end
    end
    for n = #later, 1, -1 do
      call('RPUSH', cell.key, format('%.0f %.0f', later[n][1], later[n][2] - gone))
    end
    local newest = entry(call('LINDEX', cell.key, -1))
    if call('LLEN', cell.key) < 2 then
      call('DEL', cell.key)
    else
      -- (All may have left by now.)
      local rest = max(0, left(cell, newest))
      call('PEXPIRE', cell.key, format('%.0f', ceil(rest / 1000) + 1))
    end
  end

  return kind
end

local log

local function unreadable(cell)
  return redis.error_reply('TOLLGATE the cell ' .. cell.key .. ' was not written by tollgate')
end

-- Reads every cell. `spent` is what is taken of `most`, `unit` what a cost of one takes.
local cells, next_arg = {}, 2
for n = 1, #KEYS do
  local kind = ARGV[next_arg]
  local a, b = tonumber(ARGV[next_arg + 1]), tonumber(ARGV[next_arg + 2])
  local c, delay = tonumber(ARGV[next_arg + 3]), 0
  next_arg = next_arg + 4
  if kind == DELAYED then kind, c, delay = BUCKET, 0, c end
  local cell = {
    key = KEYS[n], kind = kind, a = a, b = b, c = c,
    spent = 0, most = a, unit = 1,
    window = 0, current = 0, previous = 0, at = now, changed = false,
  }
  cells[n] = cell
  if kind == LOG then
    log = log or make_log()
    if not log.load(cell) then return unreadable(cell) end
  elseif kind == BUCKET then
    -- `b1 full at emission refill_every`: full again at `full`, written at `at`
    cell.most, cell.unit, cell.at = a * b + delay, a, stepped(now, c)
    local text = call('GET', cell.key)
    if text then
      local full, at, emission, step = match(text, '^b1 (%d+) (%d+) (%d+) (%d+)$')
      if not full then return unreadable(cell) end
      full, at, emission, step = tonumber(full), tonumber(at), tonumber(emission), tonumber(step)
      if emission == 0 or full > MOST or at > MOST then return unreadable(cell) end
      local from = stepped(now, step)
      if at > now then
        full = full - (stepped(at, step) - from)
        cell.changed = true
      end
      local spent = max(0, full - from)
      if emission ~= a then
        local part = fmod(spent, emission)
        spent = (spent - part) / emission * a + scaled(part, a, emission)
      end
      if emission ~= a or step ~= c then cell.changed = true end
      cell.spent = min(spent, MOST / 2)
    end
  else
    -- `w1 window current previous length` of a sliding_window, `f1 window current length` of a
    -- fixed_window
    local window = quotient(now, b)
    local text = call('GET', cell.key)
    if text then
      local written, current, previous, length
      if kind == SLIDING then
        written, current, previous, length = match(text, '^w1 (%d+) (%d+) (%d+) (%d+)$')
      else
        written, current, length = match(text, '^f1 (%d+) (%d+) (%d+)$')
      end
      if not written then return unreadable(cell) end
      written, length = tonumber(written), tonumber(length)
      current, previous = tonumber(current), tonumber(previous or 0)
      if length == 0 or current > MOST_UNITS or previous > MOST_UNITS then
        return unreadable(cell)
      end
      local index = length == b and window or quotient(now, length)
      if written == index + 1 then
        -- The clock may have run back by a moment: read as of its window's beginning.
        index, cell.at = written, written * length
      elseif written > index then
        written, cell.changed = index, true
      end
      if index == written + 1 then
        current, previous = 0, current
      elseif index > written then
        current, previous = 0, 0
      end
      if length == b then
        window = index
      else
        -- Another grid of windows: what counts now is carried into the current one.
        if kind == SLIDING then
          current = current + scaled(previous, length - fmod(cell.at, length), length)
        end
        window, current, previous = quotient(cell.at, b), min(current, MOST_UNITS), 0
        cell.changed = true
        if window == quotient(now, b) then cell.at = now else cell.at = window * b end
      end
      cell.current = current
      if kind == SLIDING then
        cell.previous = previous
        if previous > 0 then current = current + scaled(previous, b - fmod(cell.at, b), b) end
      end
      cell.spent = current
    end
    cell.window = window
  end
end

-- Settles run after run.
local reply = { tonumber(ARGV[1]), now }
while ARGV[next_arg] do
  local op, n, m = ARGV[next_arg], tonumber(ARGV[next_arg + 1]), tonumber(ARGV[next_arg + 2])
  next_arg = next_arg + 3
  if op == 'r' then
    for i = next_arg, next_arg + 3 * m - 1, 3 do
      local cell, units = cells[tonumber(ARGV[i])], tonumber(ARGV[i + 1])
      if cell.kind == LOG then
        log.give(cell, units, n)
        cell.changed = false
      else
        cell.changed = true
        if cell.kind == BUCKET then
          -- What came back since and would not have without the charge (the bucket would have been
          -- full) is not given back again.
          local came = max(0, cell.at - stepped(n, cell.c) - tonumber(ARGV[i + 2]))
          cell.spent = max(0, cell.spent - max(0, units * cell.unit - came))
        elseif cell.window == quotient(n, cell.b) then
          cell.current = max(0, cell.current - units)
        elseif cell.window == quotient(n, cell.b) + 1 then
          cell.previous = max(0, cell.previous - units)
        end
      end
    end
    next_arg = next_arg + 3 * m
  else
    local last = next_arg + 2 * m - 1
    local many = n
    for i = next_arg, last, 2 do
      local cell, cost = cells[tonumber(ARGV[i])], tonumber(ARGV[i + 1])
      local room = max(0, cell.most - cell.spent)
      if op == 'c' or op == 'd' then
        local units = cost
        if op == 'c' then
          units = min(cost, quotient(room, cell.unit))
        elseif cell.kind == BUCKET then
          units = max(0, min(cost, quotient(MOST / 2 - cell.spent, cell.unit)))
        else
          units = max(0, min(cost, MOST_UNITS - cell.spent))
        end
        cell.spent, cell.current = cell.spent + units * cell.unit, cell.current + units
        cell.changed = true
      elseif cost > 0 then
        many = min(many, quotient(room, cost * cell.unit))
      end
    end
    if op == 's' then
      reply[#reply + 1] = many
      for i = next_arg, last, 2 do
        local cell, cost = cells[tonumber(ARGV[i])], tonumber(ARGV[i + 1])
        local kind, at = cell.kind, #reply
        if kind == BUCKET then
          reply[at + 1] = cell.spent
        elseif kind == LOG then
          local above = 0
          if many < n and cost > 0 and cost <= cell.a then
            above = max(0, cell.spent + (many + 1) * cost - cell.a)
          end
          log.numbers(cell, reply, above)
        else
          reply[at + 1], reply[at + 2] = cell.window, cell.current
          if kind == SLIDING then reply[at + 3] = cell.previous end
        end
        local units = many * cost
        if units > 0 then
          cell.spent, cell.current = cell.spent + units * cell.unit, cell.current + units
          cell.changed = true
        end
      end
    end
    next_arg = last + 1
  end
end

-- Writes what changed, until it equals an absent one.
for n = 1, #cells do
  local cell = cells[n]
  local kind, length = cell.kind, cell.b
  if not cell.changed then
    -- as it was
  elseif kind == LOG then
    log.save(cell)
  else
    local text, idle
    if kind == BUCKET then
      if cell.spent > 0 then
        local full = cell.at + cell.spent
        text = format('b1 %.0f %.0f %.0f %.0f', full, now, cell.a, cell.c)
        idle = cell.c > 0 and stepped(full + cell.c - 1, cell.c) or full
      end
    elseif cell.current + cell.previous > 0 then
      if kind == SLIDING then
        text = format('w1 %.0f %.0f %.0f %.0f', cell.window, cell.current, cell.previous, length)
        idle = (cell.window + (cell.current > 0 and 2 or 1)) * length
      else
        text = format('f1 %.0f %.0f %.0f', cell.window, cell.current, length)
        idle = (cell.window + 1) * length
      end
    end
    if text then
      call('SET', cell.key, text, 'PX', format('%.0f', ceil((idle - now) / 1000) + 1))
    else
      call('DEL', cell.key)
    end
  end
end

return reply
