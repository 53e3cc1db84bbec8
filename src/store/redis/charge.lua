-- Settles a batch of charges, in order, in one atomic step of the server.
--
-- KEYS[i]   The i-th cell of the call. A cell holds what one key has spent under one limit.
--
-- ARGV[1]   The number of the call. The reply repeats it.
--
-- ARGV      Then for each cell, in the order of KEYS, its algorithm and the lengths of the windows of its limit:
--             1 remembers        token_bucket; remembers is 1 if its charges may be refunded
--             2 w length x w     sliding_window; w lengths, ascending
--             3 w length x w     sliding_log
--             4 w length x w     fixed_window
--
--           Then the runs, until the arguments end. A run is an operation on m cells:
--             's' n m  entry x m            charge: judges n equal charges, one after the other, and spends
--                                           each that all m cells admit
--             'q' 1 m  entry x m            check: judges one charge and spends nothing
--             'c' 1 m  entry x m            report: spends without judging, in each cell up to the limit
--             'd' 1 m  entry x m            debit: spends without judging, above the limit too
--             'r' at m (entry origin) x m   refund: gives back what was spent at the instant `at`
--           An entry is an index into KEYS (from 1), a cost, and the numbers of the rate it is charged under:
--             cell cost emission burst refill_every max_delay    of a token_bucket
--             cell cost limit length                             of the other algorithms
--           `origin` says where the refunded charge was counted. Of a sliding_log it is the chunk that holds
--           the charge. Of window counters it has one bit for each window that ARGV names for the cell: the
--           bit is set if the limit had that window when the charge was made. Of a token_bucket it is unused.
--
-- Reply     The number of the call, the server's time, and then for each run of 's' and 'q' how many charges
--           were admitted, and for each of its cells what the cell was before the run. limit/reading.rs has
--           the table of these numbers and computes every verdict from them. For each run of 'c', the units
--           that each of its cells was charged.
--           A cell that another program wrote is answered by an error that begins with TOLLGATE.
--
-- Every time is in microseconds since the epoch. Every number is an integer below 2^53, where the arithmetic
-- of Lua's doubles is exact.
--
-- Example: two charges of 1 on an absent cell of 60 units in a minute, 20 s into the window 28333333:
--   KEYS    tollgate:x
--   ARGV    9   2 1 60000000   s 2 1  1 1 60 60000000
--   reply   9 1700000000000000   2   28333333 0 0
-- Both were admitted, and the window before and this one held nothing. `tollgate:x` is now
-- `w1 28333333 2 0 60000000` and expires in 100 s, at the end of the next window.
-- A run of 59 such charges at the same instant finds 58 units free:
--   ARGV    10   2 1 60000000   s 59 1  1 1 60 60000000
--   reply   10 1700000000000000   58   28333333 2 0
--
-- Promise: a charge is spent in all of its cells or in none.
--   * A refused charge spends nothing. It may still write what changes no verdict: windows and rates that a cell
--     did not have yet, how long a log keeps its times, and times that are pulled back. It may drop what no
--     verdict needs any more.
--   * Every cell (of a log: its directory) is read before the first write. So a cell that cannot be read, or a
--     server that takes no writes, leaves all cells as they were. Chunks of a log may be read later; a
--     missing chunk counts as empty.
--   * Every write expires at the moment when the cell equals an absent one.
--   * A stored time that is ahead of the server's clock (the clock was set back, or another server took over) is
--     pulled back to the clock. So nothing that was spent is lost, and no key is locked out for longer than
--     a full refill.
--
-- All rates of one limit share a cell. A cell of a window algorithm has a counter for each window length, a
-- bucket has a time for each rate. A charge is judged under its own rate and spent under all of them
-- (limit/counters.rs and limit/buckets.rs say why).

local call, ARGV, KEYS = redis.call, ARGV, KEYS
local clock = call('TIME') -- the only reading of the clock: the whole call happens at one instant
local now = clock[1] * 1000000 + clock[2]
local now_seconds = tonumber(clock[1])

local fmod, floor, ceil, min, max = math.fmod, math.floor, math.ceil, math.min, math.max
local format, match, gmatch, concat = string.format, string.match, string.gmatch, table.concat
local BUCKET, SLIDING, LOG = '1', '2', '3' -- '4' is a fixed_window
local MAX_NUMBER = 9007199254740991 -- 2^53 - 1
local MAX_UNITS = 4294967295 -- 2^32 - 1
local MAX_COUNTERS = 16 -- of one cell: limit/counters.rs
local KEEP_UNUSED = 3600 -- seconds: limit/retention.rs
local MAX_KEPT_RATES, MAX_SUMS, SUMS_PER_FILL = 16, 16, 16 -- of one cell: limit/buckets.rs

-- The server creates all functions of a script anew on each run. So there are only a few: functions that only
-- some cells need are made on demand (make_log, make_buckets, make_windows), and what most calls need is
-- written inline.

local function quotient(a, b)
  return (a - fmod(a, b)) / b
end

-- a * b / c, rounded up. Exact for a < 2^49 and b, c < 2^45: a product above 2^53 is divided digit by digit,
-- in base 128.
local function mul_div_up(a, b, c)
  local product = a * b
  if product <= MAX_NUMBER then
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

-- The last multiple of `step` at or before `time`. A bucket with refill_every gets units at these instants
-- only; a step of 0 refills continuously.
local function floor_to_step(time, step)
  if step == 0 then return time end
  return time - fmod(time, step)
end

-- Converts the spent time of a bucket to another rate: units carry over, rounded up, and at most empty the
-- bucket.
local function carry_over(spent, old_emission, emission, fill)
  if spent > 0 and old_emission ~= emission then
    local fraction = fmod(spent, old_emission)
    spent = (spent - fraction) / old_emission * emission + mul_div_up(fraction, emission, old_emission)
  end
  return min(spent, fill)
end

-- The units of a counter that count now. Of the previous window (sliding_window only) it is the share that
-- still overlaps the window that ends now.
local function counted_units(counter)
  local spent = counter.current
  if counter.previous > 0 then
    local length = counter.length
    spent = spent + mul_div_up(counter.previous, length - fmod(counter.read_at, length), length)
  end
  return spent
end

-- The functions of sliding_log cells, made when a call names one. Such a cell is a hash. Field `h` is a
-- directory: `newest keep needed;` and then for each chunk, oldest first, `id first count sum;`. `newest` is the
-- time of the last charge. `keep` is the longest window that times are kept for, `needed` the second in which a
-- charge last needed that. Each chunk is a field of its own, named by its id: `time cost;` for each charge.
-- So a call reads the directory and a few chunks, whatever happens to a log of ten thousand times.
local function make_log()
  local logs = {}
  local MAX_CHUNK = 256 -- times in a chunk
  local SMALL_CHUNK = 64 -- two neighbours with at most this many times together are merged
  local MANY_EXPIRED = 64 -- expired times at the front that justify writing the chunk anew
  local MAX_TIMES = 12500 -- MAX_LOG_CHARGES in limit/charge_log.rs

  local function chunk_text(cell, chunk)
    if not chunk.text then chunk.text = call('HGET', cell.key, chunk.id) or '' end
    return chunk.text
  end

  -- The time of the last entry of a chunk's text. It looks at the end of the text only, because a pattern
  -- that is anchored at the end is tried at every position.
  local function last_time(text)
    return match(string.sub(text, -40), '(%d+) %d+;$')
  end

  -- The index of the last chunk that begins at or before `edge`; 0 if all begin later.
  local function chunk_index_at(cell, edge)
    local low, high = 0, #cell.chunks
    while low < high do
      local middle = ceil((low + high) / 2)
      if cell.chunks[middle].first <= edge then low = middle else high = middle - 1 end
    end
    return low
  end

  -- Reads the directory. Returns false if another program wrote it.
  function logs.load(cell)
    local text = call('HGET', cell.key, 'h')
    cell.chunks, cell.added, cell.times, cell.removed_ids = {}, 0, 0, {}
    cell.keep, cell.needed, cell.spent_by_length, cell.fits_after = cell.longest, now_seconds, {}, {}
    if not text then return call('EXISTS', cell.key) == 0 end
    local newest, keep, needed, rest = match(text, '^(%d+) (%d+) (%d+);(.*)$')
    newest, keep, needed = tonumber(newest), tonumber(keep), tonumber(needed)
    if not newest or newest > MAX_NUMBER then return false end
    if newest + keep <= now then
      -- All times have left every window: the cell equals an absent one.
      cell.expired = true
      return true
    end
    if keep > cell.longest and now_seconds - needed <= max(KEEP_UNUSED, 2 * quotient(keep, 1000000)) then
      cell.keep, cell.needed = keep, needed
    elseif keep < cell.longest then
      -- From now on times are kept for longer. This is written even if the charge is refused.
      cell.changed = true
    end
    local chunks, count_read = cell.chunks, 0
    for id, first, count, sum in gmatch(rest, '(%d+) (%d+) (%d+) (%d+);') do
      count_read = count_read + 1
      chunks[count_read] = {
        id = id, first = tonumber(first), count = tonumber(count), sum = tonumber(sum),
      }
      cell.times = cell.times + tonumber(count)
    end
    if count_read == 0 then return false end
    cell.newest = newest
    if newest > now then cell.changed = true end
    return true
  end

  -- The times of a chunk at or before `edge`: how many, their units, and where the text continues after them.
  local function expired_entries(cell, chunk, edge)
    local count, units, from = 0, 0, 1
    for time, cost, after in gmatch(chunk_text(cell, chunk), '(%d+) (%d+);()') do
      if tonumber(time) > edge then break end
      count, units, from = count + 1, units + tonumber(cost), after
    end
    return count, units, from
  end

  -- The units of the log that count in a window of this length, without those that this call has added.
  function logs.spent(cell, length)
    local spent = cell.spent_by_length[length]
    if spent then return spent end
    spent = 0
    if cell.newest and cell.newest + length > now then
      local edge = now - length
      local index = chunk_index_at(cell, edge)
      if index > 0 then
        local _, expired_units = expired_entries(cell, cell.chunks[index], edge)
        spent = cell.chunks[index].sum - expired_units
      end
      for n = index + 1, #cell.chunks do spent = spent + cell.chunks[n].sum end
    end
    cell.spent_by_length[length] = spent
    return spent
  end

  -- How long until `above` of the units that count have left the window.
  local function time_until_left(cell, length, above)
    local edge, freed = now - length, 0
    for n = max(1, chunk_index_at(cell, edge)), #cell.chunks do
      local chunk = cell.chunks[n]
      if chunk.first <= edge or freed + chunk.sum >= above then
        for time, cost in gmatch(chunk_text(cell, chunk), '(%d+) (%d+);') do
          time = tonumber(time)
          if time > edge then
            freed = freed + tonumber(cost)
            if freed >= above then return min(time, now) + length - now end
          end
        end
      else
        freed = freed + chunk.sum
      end
    end
    return 0
  end

  -- Appends the four numbers of a log to the reply. `above`: by how much the refused charge exceeds the
  -- limit, 0 if none is refused.
  function logs.numbers(cell, reply, length, above)
    local reset, fits = 0, 0
    local stored = logs.spent(cell, length)
    if cell.added > 0 then
      reset = length
    elseif cell.newest then
      reset = max(0, min(cell.newest, now) + length - now)
    end
    if above > stored then
      fits = length
    elseif above > 0 then
      local cache_key = length .. ' ' .. above
      fits = cell.fits_after[cache_key] or time_until_left(cell, length, above)
      cell.fits_after[cache_key] = fits
    end
    local last = cell.chunks[#cell.chunks]
    local id = 1
    if last then id = last.count < MAX_CHUNK and last.id or last.id + 1 end
    local n = #reply
    reply[n + 1], reply[n + 2] = tonumber(id), stored + cell.added
    reply[n + 3], reply[n + 4] = reset, fits
  end

  -- The chunk of a charge: the one it was written to, or the one its times were moved to since.
  local function chunk_of_charge(cell, time, id)
    for n = #cell.chunks, 1, -1 do
      local chunk = cell.chunks[n]
      if tonumber(chunk.id) == id and chunk.first <= time then return chunk end
    end
    return cell.chunks[chunk_index_at(cell, time)]
  end

  -- Takes units out of the entry of the instant `at`. Returns how many were there; nil if the chunk has no
  -- such entry.
  local function take_out(cell, chunk, units, at)
    local prefix = format('%.0f ', at)
    local text, from = chunk_text(cell, chunk), 1
    if string.sub(text, 1, #prefix) ~= prefix then
      -- The search includes the separator: a digit would begin a match at every second position.
      from = string.find(text, ';' .. prefix, 1, true)
      if not from then return nil end
      from = from + 1
    end
    local cost = match(text, '^(%d+);', from + #prefix)
    if not cost then return nil end
    local rest = from + #prefix + #cost + 1
    local taken = min(units, tonumber(cost))
    local left = tonumber(cost) - taken
    if left > 0 then
      chunk.text = concat({ string.sub(text, 1, from - 1), prefix, format('%.0f;', left),
        string.sub(text, rest) })
    else
      chunk.text = string.sub(text, 1, from - 1) .. string.sub(text, rest)
      chunk.count, cell.times = chunk.count - 1, cell.times - 1
      chunk.first = tonumber(match(chunk.text, '^%d+')) or chunk.first
    end
    chunk.sum, chunk.changed = chunk.sum - taken, true
    return taken
  end

  -- Refunds what was charged at the instant `at`, into the chunk `id`.
  function logs.refund(cell, units, at, id)
    if #cell.chunks == 0 then return end
    local chunk = chunk_of_charge(cell, at, id)
    if not chunk then return end
    local taken = take_out(cell, chunk, units, at)
    if not taken then
      chunk = cell.chunks[chunk_index_at(cell, at)]
      taken = chunk and take_out(cell, chunk, units, at)
    end
    if not taken then return end
    cell.changed, cell.newest_unknown, cell.fits_after = true, true, {}
    for length, spent in pairs(cell.spent_by_length) do
      if at > now - length then cell.spent_by_length[length] = spent - taken end
    end
  end

  local function remove_chunk(cell, n)
    local chunk = table.remove(cell.chunks, n)
    cell.times = cell.times - chunk.count
    cell.removed_ids[#cell.removed_ids + 1] = chunk.id
  end

  -- Moves the times of chunk `n` to the front of the next chunk.
  local function merge_into_next(cell, n)
    local chunk, next_chunk = cell.chunks[n], cell.chunks[n + 1]
    next_chunk.text = chunk_text(cell, chunk) .. chunk_text(cell, next_chunk)
    next_chunk.first, next_chunk.count, next_chunk.sum =
      chunk.first, chunk.count + next_chunk.count, chunk.sum + next_chunk.sum
    next_chunk.changed = true
    cell.times = cell.times + chunk.count
    remove_chunk(cell, n)
  end

  -- Moves entries that are at `now` or ahead of the clock into `added`: they become one entry at `now`.
  local function pull_back(cell)
    while #cell.chunks > 0 and cell.newest >= now do
      local last = cell.chunks[#cell.chunks]
      if last.first >= now then
        cell.added = cell.added + last.sum
        remove_chunk(cell, #cell.chunks)
        last = cell.chunks[#cell.chunks]
        cell.newest = last and tonumber(last_time(chunk_text(cell, last))) or 0
      else
        local kept, count, sum, newest = {}, 0, 0, last.first
        for time, cost in gmatch(chunk_text(cell, last), '(%d+) (%d+);') do
          if tonumber(time) < now then
            count, sum, newest = count + 1, sum + tonumber(cost), tonumber(time)
            kept[count] = time .. ' ' .. cost .. ';'
          end
        end
        cell.times, cell.added = cell.times - last.count + count, cell.added + last.sum - sum
        last.text, last.count, last.sum, last.changed = concat(kept), count, sum, true
        cell.newest = newest
      end
    end
  end

  -- Appends what was added to the last chunk, as one entry at `now`.
  local function append_added(cell)
    local last = cell.chunks[#cell.chunks]
    if not last or last.count >= MAX_CHUNK then
      local id = last and format('%.0f', last.id + 1) or '1'
      last = { id = id, first = now, count = 0, sum = 0, text = '' }
      cell.chunks[#cell.chunks + 1] = last
    end
    last.text = chunk_text(cell, last) .. format('%.0f %.0f;', now, cell.added)
    if last.count == 0 then last.first = now end
    last.count, last.sum, last.changed = last.count + 1, last.sum + cell.added, true
    cell.times, cell.newest, cell.added = cell.times + 1, now, 0
  end

  -- Drops chunks that have left every window, and keeps the directory short: it removes empty chunks, merges
  -- small neighbours, and replaces the oldest chunk by a single entry if there are too many times.
  local function compact(cell)
    while #cell.chunks > 1 and cell.chunks[2].first + cell.keep <= now do remove_chunk(cell, 1) end
    local front = cell.chunks[1]
    if front and front.first + cell.keep <= now then
      local count, units, from = expired_entries(cell, front, now - cell.keep)
      if count >= MANY_EXPIRED or count == front.count then
        front.text, front.changed = string.sub(chunk_text(cell, front), from), true
        front.count, front.sum, cell.times = front.count - count, front.sum - units, cell.times - count
        front.first = tonumber(match(front.text, '^%d+')) or now
      end
    end
    for n = #cell.chunks, 1, -1 do
      local chunk, next_chunk = cell.chunks[n], cell.chunks[n + 1]
      if chunk.count == 0 then
        remove_chunk(cell, n)
      elseif next_chunk and chunk.count + next_chunk.count <= SMALL_CHUNK then
        merge_into_next(cell, n)
      end
    end
    if cell.times > MAX_TIMES and #cell.chunks > 1 then
      local chunk = cell.chunks[1]
      local time = last_time(chunk_text(cell, chunk)) or '0'
      cell.times = cell.times - chunk.count + 1
      chunk.text, chunk.first = format('%s %.0f;', time, chunk.sum), tonumber(time)
      chunk.count, chunk.changed = 1, true
      merge_into_next(cell, 1)
    end
  end

  -- Writes the directory and the chunks that changed.
  function logs.save(cell)
    if cell.expired then
      call('DEL', cell.key)
    elseif cell.newest then
      pull_back(cell)
    end
    if cell.added > 0 then append_added(cell) end
    compact(cell)
    local last = cell.chunks[#cell.chunks]
    if not last then
      call('DEL', cell.key)
      return
    end
    if cell.longest >= cell.keep then cell.keep, cell.needed = cell.longest, now_seconds end
    if cell.newest_unknown then cell.newest = tonumber(last_time(chunk_text(cell, last))) or last.first end
    local directory = { format('%.0f %.0f %.0f;', cell.newest, cell.keep, cell.needed) }
    local fields = { 'HSET', cell.key, 'h', '' }
    for n = 1, #cell.chunks do
      local chunk = cell.chunks[n]
      directory[n + 1] =
        format('%s %.0f %.0f %.0f;', chunk.id, chunk.first, chunk.count, chunk.sum)
      if chunk.changed then
        fields[#fields + 1], fields[#fields + 2] = chunk.id, chunk.text
      end
    end
    fields[4] = concat(directory)
    -- Removed first, because the id of a removed chunk may be used again.
    if #cell.removed_ids > 0 then call('HDEL', cell.key, unpack(cell.removed_ids)) end
    call(unpack(fields))
    local rest = max(0, cell.newest + cell.keep - now)
    call('PEXPIRE', cell.key, format('%.0f', ceil(rest / 1000) + 1))
  end

  return logs
end

local logs

-- The functions of buckets that are charged under several rates or remember charges, made when a call needs one.
-- Such a cell is `b2 at rates`, then for each rate `emission step fill max_spent full_at base_full_at since`, and
-- then for each sum of recent charges, oldest first, `last_at units`. limit/buckets.rs says what they are for:
--   full_at        when the bucket is full again; it has spent the time from now until then
--   max_spent      the largest spent time that a charge under this rate has left
--   base_full_at   full_at without the charges that are remembered, which are those since `since`
local function make_buckets()
  local buckets = {}

  -- The full_at of a rate after a charge at the instant `at`, which leaves at most `max_spent` spent.
  local function charged_up_to(rate, max_spent, full_at, units, at)
    local from = floor_to_step(at, rate.step)
    return max(full_at, min(max(full_at, from) + units * rate.emission, from + max_spent))
  end

  local function add_rate(cell, emission, step, fill, max_spent, full_at)
    local rate = {
      emission = emission, step = step, fill = fill, max_spent = max_spent, full_at = full_at,
      base_full_at = full_at, since = now,
    }
    cell.rates[#cell.rates + 1] = rate
    return rate
  end

  -- Converts a cell that had one rate and remembered nothing.
  function buckets.convert(cell)
    cell.rates, cell.recent = {}, {}
    if cell.spent > 0 then
      add_rate(cell, cell.emission, cell.step, cell.fill, max(cell.fill, cell.spent),
        floor_to_step(now, cell.step) + cell.spent)
    end
  end

  -- Reads a cell. Returns false if another program wrote it.
  function buckets.load(cell, text)
    local at, rate_count, rest = match(text, '^b2 (%d+) (%d+)([ %d]*)$')
    at, rate_count = tonumber(at), tonumber(rate_count)
    if not at or at > MAX_NUMBER or rate_count == 0 or rate_count > MAX_KEPT_RATES then return false end
    cell.rates, cell.recent = {}, {}
    local numbers, number_count = {}, 0
    for number in gmatch(rest, '%d+') do
      number_count = number_count + 1
      numbers[number_count] = tonumber(number)
      if numbers[number_count] > MAX_NUMBER then return false end
    end
    if number_count < 7 * rate_count or fmod(number_count - 7 * rate_count, 2) > 0 then return false end
    local idle = true
    for n = 0, rate_count - 1 do
      local first = 7 * n
      local rate = {
        emission = numbers[first + 1], step = numbers[first + 2], fill = numbers[first + 3],
        max_spent = numbers[first + 4], full_at = numbers[first + 5], base_full_at = numbers[first + 6],
        since = numbers[first + 7],
      }
      if rate.emission == 0 then return false end
      if at > now then
        -- The clock ran back: what was spent stays spent, counted from the present instant.
        local ahead = floor_to_step(at, rate.step) - floor_to_step(now, rate.step)
        rate.full_at, rate.base_full_at = max(0, rate.full_at - ahead), max(0, rate.base_full_at - ahead)
        rate.since = min(rate.since, now)
      end
      cell.rates[n + 1] = rate
      idle = idle and rate.full_at <= floor_to_step(now, rate.step)
    end
    for n = 7 * rate_count + 1, number_count, 2 do
      cell.recent[#cell.recent + 1] = { last_at = min(numbers[n], now), units = numbers[n + 1] }
    end
    -- A cell that is idle but has not expired yet is treated as an absent one: the next charge begins it anew, in
    -- the form of its own limit.
    if idle then
      cell.rates, cell.recent, cell.changed = nil, nil, true
    elseif at > now then
      cell.changed = true
    end
    return true
  end

  -- The bucket of a rate. If the cell has none, one is added; it begins with the largest number of units that
  -- is spent under any other rate.
  function buckets.find_or_add(cell, emission, step, fill, capacity)
    local rates = cell.rates
    for n = 1, #rates do
      local rate = rates[n]
      if rate.emission == emission and rate.step == step and rate.fill == fill then
        rate.max_spent = max(rate.max_spent, capacity)
        return rate
      end
    end
    -- An instant `full_at` of another rate, as this rate would have it at `at`.
    local function converted(other, full_at, at)
      local spent = max(0, full_at - floor_to_step(at, other.step))
      spent = carry_over(spent, other.emission, emission, fill)
      return spent > 0 and floor_to_step(at, step) + spent or 0
    end
    local full_at, source = 0, nil
    for n = 1, #rates do
      local candidate = converted(rates[n], rates[n].full_at, now)
      if candidate > full_at then full_at, source = candidate, rates[n] end
    end
    if #rates >= MAX_KEPT_RATES then table.remove(rates, 1) end
    local own = add_rate(cell, emission, step, fill, capacity, full_at)
    if source then
      -- A later refund of a charge under the source rate then counts under this rate too.
      own.base_full_at, own.since, cell.changed =
        converted(source, source.base_full_at, source.since), source.since, true
    end
    return own
  end

  -- Adds units to the sums of recent charges. A sum spans a sixteenth of the time that the fastest bucket takes to
  -- fill.
  local function remember(cell, units)
    local rates, recent, fastest, slowest = cell.rates, cell.recent, MAX_NUMBER, 0
    for n = 1, #rates do
      fastest, slowest = min(fastest, rates[n].fill), max(slowest, rates[n].fill)
    end
    local span, last = max(1, quotient(fastest, SUMS_PER_FILL)), recent[#recent]
    if last and quotient(now, span) <= quotient(last.last_at, span) then
      last.last_at, last.units = now, min(last.units + units, MAX_UNITS)
      return
    end
    if not last then
      for n = 1, #rates do rates[n].base_full_at, rates[n].since = rates[n].full_at, now end
    end
    if #recent >= MAX_SUMS and recent[1].last_at + slowest <= now then
      -- The oldest sum has refilled under every rate: it moves into the base.
      local oldest = table.remove(recent, 1)
      for n = 1, #rates do
        local rate = rates[n]
        if oldest.last_at >= rate.since then
          rate.base_full_at =
            charged_up_to(rate, rate.max_spent, rate.base_full_at, oldest.units, oldest.last_at)
          rate.since = oldest.last_at + 1
        end
      end
    elseif #recent >= MAX_SUMS then
      -- The two sums closest in time are merged.
      local closest = 1
      for n = 2, #recent - 1 do
        local gap = recent[n + 1].last_at - recent[n].last_at
        if gap < recent[closest + 1].last_at - recent[closest].last_at then closest = n end
      end
      local earlier = table.remove(recent, closest)
      recent[closest].units = min(recent[closest].units + earlier.units, MAX_UNITS)
    end
    recent[#recent + 1] = { last_at = now, units = units }
  end

  -- Charges under the rate `own`, whether it fits or not. The other rates are charged at most what they have
  -- left.
  function buckets.charge(cell, units, own)
    cell.changed = true
    local idle = true
    for n = 1, #cell.rates do
      local rate = cell.rates[n]
      idle = idle and rate.full_at <= floor_to_step(now, rate.step)
    end
    if idle then
      own.full_at, own.base_full_at, own.since = 0, 0, now
      cell.rates, cell.recent = { own }, {}
    end
    if cell.remembers or cell.recent[1] then remember(cell, units) end
    -- The rate that was charged last moves to the end of the list.
    local rates, index = cell.rates, 1
    while rates[index] ~= own do index = index + 1 end
    if index < #rates then table.insert(rates, table.remove(rates, index)) end
    for n = 1, #rates do
      local rate = rates[n]
      if rate == own then
        rate.full_at = min(max(rate.full_at, floor_to_step(now, rate.step)) + units * rate.emission, MAX_NUMBER)
        rate.max_spent = max(rate.max_spent, rate.full_at - floor_to_step(now, rate.step))
      else
        rate.full_at = charged_up_to(rate, rate.fill, rate.full_at, units, now)
      end
    end
  end

  -- Refunds what was charged at the instant `at`, as far as it is remembered.
  function buckets.refund(cell, units, at)
    local recent, sum = cell.recent, nil
    for n = #recent, 1, -1 do
      if recent[n].last_at < at then break end
      sum = recent[n]
    end
    local remembered = false
    for n = 1, #cell.rates do remembered = remembered or at >= cell.rates[n].since end
    if not sum or not remembered then return end
    units = min(units, sum.units)
    sum.units, cell.changed = sum.units - units, true
    for n = 1, #cell.rates do
      local rate = cell.rates[n]
      if at >= rate.since then
        local recomputed = rate.base_full_at
        for k = 1, #recent do
          if recent[k].last_at >= rate.since then
            recomputed = charged_up_to(rate, rate.max_spent, recomputed, recent[k].units, recent[k].last_at)
          end
        end
        -- Two computations give a state that is at most as full as without the charge; the fuller one counts
        -- (Buckets::refund in limit/buckets.rs says why). A refund gives back at most its units.
        local earliest = rate.full_at - units * rate.emission
        if #cell.rates == 1 then
          recomputed = min(recomputed, earliest + max(0, floor_to_step(now, rate.step) - floor_to_step(at, rate.step)))
        end
        rate.full_at = min(rate.full_at, max(earliest, recomputed))
      end
    end
  end

  -- The text to store, and the instant from when the cell equals an absent one; nil if it does already.
  function buckets.text(cell)
    local texts, idle_at = { format('b2 %.0f %d', now, #cell.rates) }, now
    for n = 1, #cell.rates do
      local rate = cell.rates[n]
      texts[n + 1] = format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f', rate.emission, rate.step, rate.fill,
        rate.max_spent, rate.full_at, rate.base_full_at, rate.since)
      if rate.full_at > floor_to_step(now, rate.step) then
        idle_at = max(idle_at, rate.step > 0 and floor_to_step(rate.full_at + rate.step - 1, rate.step) or rate.full_at)
      end
    end
    if idle_at <= now then return nil end
    for n = 1, #cell.recent do
      texts[#texts + 1] = format('%.0f %.0f', cell.recent[n].last_at, cell.recent[n].units)
    end
    return concat(texts, ' '), idle_at
  end

  return buckets
end

local buckets

local function unreadable(cell)
  return redis.error_reply('TOLLGATE the cell ' .. cell.key .. ' was not written by tollgate')
end

-- Moves a counter to the present window. If a window has passed, its units become those of the window before, which
-- only a sliding_window counts; if more have passed, they no longer count.
local function move_to_now(counter, sliding)
  local length, written = counter.length, counter.window
  local index = quotient(now, length)
  counter.read_at = now
  if written == index + 1 then
    -- The clock may have run back by a moment: the counter is read at the beginning of its window.
    index, counter.read_at = written, written * length
  elseif written > index then
    -- A clock that was ahead wrote it: it is pulled back to the present window.
    written, counter.changed = index, true
  end
  if index == written + 1 then
    counter.current, counter.previous = 0, sliding and counter.current or 0
  elseif index > written then
    counter.current, counter.previous = 0, 0
  end
  counter.window = index
end

-- The functions of cells with several windows, made when a call names one. Such a cell is `w2`
-- (sliding_window) or `f2` (fixed_window), and then for each counter `window current previous length judged`:
-- the number of its window, the units in it and in the one before, the length of its windows, and the second in
-- which a charge was last judged on it.
local function make_windows()
  local windows = {}

  -- Reads the counters of a cell. Returns false if another program wrote it.
  local function read(cell, text)
    local counters, head = cell.counters, cell.algorithm == SLIDING and 'w' or 'f'
    local window, current, length = match(text, '^' .. head .. '1 (%d+) (%d+) (%d+)')
    local previous = 0
    if window and head == 'w' then
      window, current, previous, length = match(text, '^w1 (%d+) (%d+) (%d+) (%d+)$')
    end
    if window then
      counters[1] = {
        window = tonumber(window), current = tonumber(current), previous = tonumber(previous),
        length = tonumber(length), judged = now_seconds,
      }
    elseif match(text, '^' .. head .. '2[ %d]+$') then
      for w, c, p, l, j in gmatch(text, ' (%d+) (%d+) (%d+) (%d+) (%d+)') do
        counters[#counters + 1] = {
          window = tonumber(w), current = tonumber(c), previous = tonumber(p),
          length = tonumber(l), judged = tonumber(j),
        }
      end
    end
    if #counters == 0 or #counters > 2 * MAX_COUNTERS then return false end
    local units = 0
    for n = 1, #counters do
      local counter = counters[n]
      if counter.length == 0 or counter.current > MAX_UNITS or counter.previous > MAX_UNITS then return false end
      move_to_now(counter, cell.algorithm == SLIDING)
      cell.changed = cell.changed or counter.changed
      units = units + counter.current + counter.previous
    end
    -- A cell that is idle but has not expired yet is treated as an absent one.
    if units == 0 then cell.counters = {} end
    return true
  end

  -- Drops counters that the limit of this call does not need: those on which no charge was judged for a long time, and
  -- while there are too many, the one on which none was judged for the longest time.
  local function drop_unneeded(cell)
    local kept = {}
    for n = 1, #cell.counters do
      local counter = cell.counters[n]
      local max_unused = max(KEEP_UNUSED, 2 * quotient(counter.length, 1000000))
      if counter.needed or now_seconds - counter.judged <= max_unused then kept[#kept + 1] = counter end
    end
    while #kept > MAX_COUNTERS do
      local oldest
      for n = 1, #kept do
        local counter = kept[n]
        if not counter.needed and not (oldest and kept[oldest].judged <= counter.judged) then oldest = n end
      end
      if not oldest then break end
      table.remove(kept, oldest)
    end
    if #kept < #cell.counters then cell.counters, cell.changed = kept, true end
  end

  -- Gives a cell a counter for each window of its limit. A new counter begins with what is known: the units of
  -- the shortest longer window, which covers it, or else the units of the longest window.
  local function add_missing(cell, lengths)
    local counters, known = cell.counters, #cell.counters
    for i = 1, #lengths do
      local length, found, source, longest = lengths[i], nil, nil, nil
      for n = 1, known do
        local counter = counters[n]
        if counter.length == length then found = counter end
        if counter.length > length and not (source and source.length <= counter.length) then source = counter end
        if not (longest and longest.length >= counter.length) then longest = counter end
      end
      if not found then
        source = source or longest
        local current, at = 0, now
        if source then current, at = min(counted_units(source), MAX_UNITS), source.read_at end
        found = {
          window = quotient(at, length), current = current, previous = 0, length = length,
          judged = now_seconds,
        }
        found.read_at = found.window == quotient(now, length) and now or found.window * length
        counters[#counters + 1] = found
        -- Stored even if the charge is refused: a later call would begin it with other units.
        if known > 0 then cell.changed = true end
      end
      found.needed = true
      cell.by_length[length] = found
    end
    if #counters > #lengths then drop_unneeded(cell) end
  end

  function windows.load(cell, text, lengths)
    cell.counters, cell.by_length, cell.lengths = {}, {}, lengths
    if text and not read(cell, text) then return false end
    add_missing(cell, lengths)
    return true
  end

  function windows.text(cell)
    local texts = { cell.algorithm == SLIDING and 'w2' or 'f2' }
    for n = 1, #cell.counters do
      local counter = cell.counters[n]
      texts[n + 1] = format('%.0f %.0f %.0f %.0f %.0f', counter.window, counter.current, counter.previous,
        counter.length, counter.judged)
    end
    return concat(texts, ' ')
  end

  return windows
end

local windows

-- Reads every cell; of a log, its directory.
local cells, next_arg = {}, 2
for n = 1, #KEYS do
  -- The second argument of a bucket is not a number of windows: it says whether the cell remembers charges.
  local algorithm, window_count = ARGV[next_arg], tonumber(ARGV[next_arg + 1])
  next_arg = next_arg + 2
  local cell = { key = KEYS[n], algorithm = algorithm, changed = false }
  cells[n] = cell
  if algorithm == BUCKET then
    -- A bucket of one rate is `b1 full_at at emission step fill`: written at `at`, full again at `full_at`.
    cell.spent, cell.emission, cell.step, cell.fill = 0, 1, 0, 0
    cell.remembers = window_count == 1
    local text = call('GET', cell.key)
    local full_at, at, emission, step, fill
    if text then full_at, at, emission, step, fill = match(text, '^b1 (%d+) (%d+) (%d+) (%d+) (%d+)$') end
    if full_at then
      full_at, at, emission, step = tonumber(full_at), tonumber(at), tonumber(emission), tonumber(step)
      if emission == 0 or full_at > MAX_NUMBER or at > MAX_NUMBER then return unreadable(cell) end
      local from = floor_to_step(now, step)
      if at > now then
        full_at = full_at - (floor_to_step(at, step) - from)
        cell.changed = true
      end
      cell.spent, cell.emission, cell.step = min(max(0, full_at - from), MAX_NUMBER / 2), emission, step
      cell.fill = tonumber(fill)
    elseif text then
      buckets = buckets or make_buckets()
      if not buckets.load(cell, text) then return unreadable(cell) end
    end
  elseif algorithm == LOG then
    cell.longest = tonumber(ARGV[next_arg + window_count - 1])
    next_arg = next_arg + window_count
    logs = logs or make_log()
    if not logs.load(cell) then return unreadable(cell) end
  else
    -- A cell with one window is `w1 window current previous length` (sliding_window) or
    -- `f1 window current length` (fixed_window). The table `cell` is then its only counter itself.
    local text, length = call('GET', cell.key), tonumber(ARGV[next_arg])
    local window, current, previous, written_length, is_single
    if text and window_count == 1 then
      if algorithm == SLIDING then
        window, current, previous, written_length = match(text, '^w1 (%d+) (%d+) (%d+) (%d+)$')
      else
        window, current, written_length = match(text, '^f1 (%d+) (%d+) (%d+)$')
      end
      is_single = window and tonumber(written_length) == length
    end
    if is_single then
      cell.window, cell.current, cell.previous = tonumber(window), tonumber(current), tonumber(previous or 0)
      cell.length = length
      if cell.current > MAX_UNITS or cell.previous > MAX_UNITS then return unreadable(cell) end
      move_to_now(cell, algorithm == SLIDING)
    elseif window_count == 1 and not text then
      cell.window, cell.current, cell.previous = quotient(now, length), 0, 0
      cell.length, cell.read_at = length, now
    else
      local lengths = {}
      for i = 1, window_count do lengths[i] = tonumber(ARGV[next_arg + i - 1]) end
      windows = windows or make_windows()
      if not windows.load(cell, text, lengths) then return unreadable(cell) end
    end
    next_arg = next_arg + window_count
  end
end

-- The bucket that an entry of a run is judged on. The table of a cell that has one rate and remembers nothing is that
-- bucket itself.
local function bucket_of(cell, emission, step, fill, capacity)
  if not cell.rates then
    if not cell.remembers then
      if cell.spent == 0 then cell.emission, cell.step, cell.fill = emission, step, fill end
      if cell.emission == emission and cell.step == step and cell.fill == fill then return cell end
    end
    buckets = buckets or make_buckets()
    buckets.convert(cell)
  end
  return buckets.find_or_add(cell, emission, step, fill, capacity)
end

-- What a bucket has spent, as the time that it takes to refill.
local function spent_time(bucket)
  return bucket.spent or max(0, bucket.full_at - floor_to_step(now, bucket.step))
end

-- Charges units to a cell. `own` is the bucket of the charge's rate, `judged_length` the window length that the
-- charge was judged on.
local function charge(cell, units, judged_length, own)
  cell.changed = true
  if own == cell then
    cell.spent = cell.spent + units * cell.emission
  elseif own then
    buckets.charge(cell, units, own)
  elseif cell.algorithm == LOG then
    cell.added = cell.added + units
  elseif not cell.counters then
    cell.current = min(cell.current + units, MAX_UNITS)
  else
    for n = 1, #cell.counters do
      local counter = cell.counters[n]
      counter.current = min(counter.current + units, MAX_UNITS)
    end
    cell.by_length[judged_length].judged = now_seconds
  end
end

-- Refunds what a counter was charged at the instant `at`, if that still counts.
local function refund_counter(counter, units, at)
  local window = quotient(at, counter.length)
  if counter.window == window then
    counter.current = max(0, counter.current - units)
  elseif counter.window == window + 1 then
    counter.previous = max(0, counter.previous - units)
  end
end

-- Settles run after run. The first pass over the entries of a run finds how many of its charges are admitted; a run
-- that is not judged is carried out there. The second pass, of 's' and 'q', replies and spends.
local reply = { tonumber(ARGV[1]), now }
while ARGV[next_arg] do
  -- `number`: of 'r' the instant of the charge, otherwise how many equal charges the run has.
  local op, number, entry_count = ARGV[next_arg], tonumber(ARGV[next_arg + 1]), tonumber(ARGV[next_arg + 2])
  next_arg = next_arg + 3
  local first_entry, admitted = next_arg, number
  local cell, cost, rate_1, rate_2, own
  for _ = 1, entry_count do
    cell, cost = cells[tonumber(ARGV[next_arg])], tonumber(ARGV[next_arg + 1])
    -- The first two numbers of the rate: emission and burst of a bucket, otherwise limit and length.
    rate_1, rate_2, own = tonumber(ARGV[next_arg + 2]), tonumber(ARGV[next_arg + 3]), nil
    next_arg = next_arg + 4
    -- `available` is what is left to spend; `unit` is what one unit takes of it. A bucket counts in time.
    local algorithm, available, unit = cell.algorithm, 0, 1
    if algorithm == BUCKET then
      local step, fill = tonumber(ARGV[next_arg]), rate_1 * rate_2
      if op ~= 'r' then
        local capacity = fill + ARGV[next_arg + 1]
        own = bucket_of(cell, rate_1, step, fill, capacity)
        available = max(0, capacity - spent_time(own))
      elseif not cell.rates and cell.emission == rate_1 and cell.step == step and cell.fill == fill then
        own = cell
      end
      unit, next_arg = rate_1, next_arg + 2
    elseif algorithm == LOG then
      available = max(0, rate_1 - logs.spent(cell, rate_2) - cell.added)
    else
      available = max(0, rate_1 - counted_units(cell.counters and cell.by_length[rate_2] or cell))
    end
    if op == 's' or op == 'q' then
      if cost > 0 then admitted = min(admitted, quotient(available, cost * unit)) end
    elseif op == 'r' then
      local origin = tonumber(ARGV[next_arg])
      next_arg = next_arg + 1
      if cell.rates then
        buckets.refund(cell, cost, number)
      elseif own then
        -- The cell remembers no charges: all units come back except as many as have refilled since.
        local refilled = max(0, floor_to_step(now, cell.step) - floor_to_step(number, cell.step))
        cell.spent, cell.changed = max(0, cell.spent - max(0, cost * rate_1 - refilled)), true
      elseif algorithm == BUCKET then
        -- A cell of one rate takes another rate only when nothing is spent, so nothing is left of the charge.
      elseif algorithm == LOG then
        logs.refund(cell, cost, number, origin)
      else
        if cell.counters then
          for k = 1, #cell.lengths do
            if fmod(origin, 2) == 1 then refund_counter(cell.by_length[cell.lengths[k]], cost, number) end
            origin = floor(origin / 2)
          end
        elseif origin > 0 then
          refund_counter(cell, cost, number)
        end
        cell.changed = true
      end
    else
      local units = cost
      if op == 'c' then
        units = min(cost, quotient(available, unit))
        reply[#reply + 1] = units
      elseif algorithm == BUCKET then
        units = max(0, min(cost, quotient(MAX_NUMBER / 2 - spent_time(own), unit)))
      elseif algorithm == LOG then
        units = max(0, min(cost, MAX_UNITS - logs.spent(cell, rate_2) - cell.added))
      end
      if units > 0 then charge(cell, units, rate_2, own) end
    end
  end
  if op == 's' or op == 'q' then
    reply[#reply + 1] = admitted
    local entry_arg = first_entry
    for _ = 1, entry_count do
      -- A run of one entry still has its numbers from the first pass.
      if entry_count > 1 then
        cell, cost = cells[tonumber(ARGV[entry_arg])], tonumber(ARGV[entry_arg + 1])
        rate_1, rate_2, own = tonumber(ARGV[entry_arg + 2]), tonumber(ARGV[entry_arg + 3]), nil
        entry_arg = entry_arg + 4
        if cell.algorithm == BUCKET then
          own = bucket_of(cell, rate_1, tonumber(ARGV[entry_arg]), rate_1 * rate_2, rate_1 * rate_2 + ARGV[entry_arg + 1])
          entry_arg = entry_arg + 2
        end
      end
      local algorithm, length = cell.algorithm, #reply
      if algorithm == BUCKET then
        reply[length + 1] = spent_time(own)
      elseif algorithm == LOG then
        local above = 0
        if admitted < number and cost > 0 and cost <= rate_1 then
          above = max(0, logs.spent(cell, rate_2) + cell.added + (admitted + 1) * cost - rate_1)
        end
        logs.numbers(cell, reply, rate_2, above)
      else
        local counter = cell.counters and cell.by_length[rate_2] or cell
        reply[length + 1], reply[length + 2] = counter.window, counter.current
        if algorithm == SLIDING then reply[length + 3] = counter.previous end
      end
      local units = admitted * cost
      if op == 's' and units > 0 then charge(cell, units, rate_2, own) end
    end
  end
end

-- The instant from when a counter no longer counts; nil if it counts nothing.
local function counter_idle_at(counter, sliding)
  if counter.current + counter.previous == 0 then return nil end
  if sliding then return (counter.window + (counter.current > 0 and 2 or 1)) * counter.length end
  return (counter.window + 1) * counter.length
end

-- Writes the cells that changed. Each expires when it equals an absent cell.
for n = 1, #cells do
  local cell = cells[n]
  if not cell.changed then
    -- There is nothing to write.
  elseif cell.algorithm == LOG then
    logs.save(cell)
  else
    local text, idle_at
    if cell.rates then
      text, idle_at = buckets.text(cell)
    elseif cell.algorithm == BUCKET then
      if cell.spent > 0 then
        local step = cell.step
        local full_at = floor_to_step(now, step) + cell.spent
        text = format('b1 %.0f %.0f %.0f %.0f %.0f', full_at, now, cell.emission, step, cell.fill)
        idle_at = step > 0 and floor_to_step(full_at + step - 1, step) or full_at
      end
    else
      local sliding, counter, counters = cell.algorithm == SLIDING, cell, cell.counters
      if counters then
        counter = counters[1]
        for k = 1, #counters do
          local at = counter_idle_at(counters[k], sliding)
          if at and not (idle_at and idle_at >= at) then idle_at = at end
        end
      else
        idle_at = counter_idle_at(cell, sliding)
      end
      if not idle_at then
        -- It equals an absent cell and is deleted.
      elseif counters and #counters > 1 then
        text = windows.text(cell)
      elseif sliding then
        text = format('w1 %.0f %.0f %.0f %.0f', counter.window, counter.current, counter.previous, counter.length)
      else
        text = format('f1 %.0f %.0f %.0f', counter.window, counter.current, counter.length)
      end
    end
    if text then
      call('SET', cell.key, text, 'PX', format('%.0f', ceil((idle_at - now) / 1000) + 1))
    else
      call('DEL', cell.key)
    end
  end
end

return reply
