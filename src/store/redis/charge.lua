-- Settles a batch of charges, in order, in one step of the server.
--
-- KEYS[i]        the i-th cell of the call
-- ARGV[1]        the number of the call, told back
-- ARGV           then for each cell its kind and the lengths of the windows that its limit has:
--                  1 remembers        token_bucket; 1: what it is charged may be given back
--                  2 w length x w     sliding_window
--                  3 w length x w     sliding_log
--                  4 w length x w     fixed_window
--                then run after run of equal charges:
--                  's' n m  part x m  judges n charges, spends each that every cell admits
--                  'q' 1 m  part x m  judges a charge and spends nothing
--                  'c' 1 m  part x m  spends without judging, up to the limit
--                  'd' 1 m  part x m  spends without judging, above the limit too
--                  'r' at m (part before) x m   gives back what was spent at the instant `at`;
--                                     `before`: of a log, the chunk in which it stands; of counters,
--                                     which windows of the cell the limit had then, as bits
--                a part is a cell, a cost, and the numbers of the rate it is charged under:
--                  cell cost emission burst refill_every max_delay    of a token_bucket
--                  cell cost limit length                             of the others
-- returns        the call's number, the server's time, then for each run of 's' and 'q': how many
--                were admitted, and for each of its cells what it was before the run
--                (limit/reading.rs has the table)
--
-- Every time is in microseconds since the epoch, every number a whole one below 2^53, where
-- arithmetic on doubles is exact.
--
-- Example: two charges of 1 on a fresh cell of 60 in a minute, at 1700000000000000:
--   KEYS  tollgate:x        ARGV  9  2 1 60000000  s 2 1  1 1 60 60000000
--   reply 9  1700000000000000  2  28333333 0 0
--   and `tollgate:x` is then `w1 28333333 2 0 60000000`, which ends with the window after this one.
--
-- Promise: all cells of a charge are spent or none. A refusal spends nothing. It writes only windows
-- and rates that a cell did not have yet, how long a log keeps its times, and times that are pulled
-- back; and it may drop what is not needed any more. The value of every cell, of a log its directory,
-- is read before the first write, so a cell that cannot be read, or a server that takes no writes,
-- leaves all as it was. Chunks of a log may be read later; a missing chunk counts as empty. Every
-- write expires at the moment the cell equals an absent one. A stored time ahead of the server's clock
-- (the clock was set back, another server took over) is pulled back to it: nothing is forgotten, and
-- no key is locked out for longer than a full refill.
--
-- Rates of one limit share a cell. Of window algorithms a cell has a counter for each length of
-- window, of buckets a time for each rate: a charge is judged on its own and added to all
-- (limit/windows.rs and limit/buckets.rs say why).

local call, ARGV, KEYS = redis.call, ARGV, KEYS
local clock = call('TIME') -- the one line that asks what time it is
local now = clock[1] * 1000000 + clock[2]
local seconds = tonumber(clock[1])

local fmod, floor, ceil, min, max = math.fmod, math.floor, math.ceil, math.min, math.max
local format, match, gmatch, concat = string.format, string.match, string.gmatch, table.concat
local BUCKET, SLIDING, LOG = '1', '2', '3'
local MAX_NUMBER = 9007199254740991 -- 2^53 - 1
local MAX_UNITS = 4294967295 -- 2^32 - 1
local MAX_COUNTERS = 16 -- of one cell: limit/windows.rs
local KEEP_UNUSED = 3600 -- seconds: limit/windows.rs
local MAX_RATES, MAX_RECENT, SUMS_PER_FILL = 16, 16, 16 -- of one cell: limit/buckets.rs

-- A script's functions are made anew each time it runs: few here, and what most calls need is
-- written where it is used.

local function quotient(a, b)
  return (a - fmod(a, b)) / b
end

-- a * b / c, rounded up; exact for a < 2^49 and b, c < 2^45
local function scaled(a, b, c)
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

-- `time`, or the last refill before it
local function stepped(time, step)
  if step == 0 then return time end
  return time - fmod(time, step)
end

-- What a bucket begins with where a key was charged under another rate so far: units carry over, rounded
-- up, and at most empty it.
local function carried(spent, from, emission, fill)
  if spent > 0 and from ~= emission then
    local part = fmod(spent, from)
    spent = (spent - part) / from * emission + scaled(part, emission, from)
  end
  return min(spent, fill)
end

-- Units that count of a counter now.
local function counted(counter)
  local spent = counter.current
  if counter.previous > 0 then
    local length = counter.length
    spent = spent + scaled(counter.previous, length - fmod(counter.at, length), length)
  end
  return spent
end

-- What a sliding_log needs, made when a call names one. It is a hash: the field `h` is a directory,
-- `time keep needed` and then for each chunk of times `id first count sum`, oldest first, and each
-- chunk stands in a field of its own as `time cost;` again and again. `time` is the newest, `keep` the
-- longest window, `needed` when a charge last needed times to be kept so long, in seconds. So whatever
-- happens to a log of ten thousand times, a call reads its directory and a few chunks.
local function make_log()
  local kind = {}
  local MAX_CHUNK = 256 -- times in a chunk
  local SMALL_CHUNK = 64 -- two neighbours with no more together become one
  local MANY_EXPIRED = 64 -- times at the front that are worth a new text
  local MAX_TIMES = 12500 -- limit/sliding_log.rs

  local function text_of(cell, chunk)
    if not chunk.text then chunk.text = call('HGET', cell.key, chunk.id) or '' end
    return chunk.text
  end

  -- The time of the last entry of a chunk's text. (Its end only: a pattern is tried at every place.)
  local function last_time(text)
    return match(string.sub(text, -40), '(%d+) %d+;$')
  end

  -- The last chunk that begins at or before `edge`; 0: all begin after it.
  local function chunk_at(cell, edge)
    local low, high = 0, #cell.chunks
    while low < high do
      local middle = ceil((low + high) / 2)
      if cell.chunks[middle].first <= edge then low = middle else high = middle - 1 end
    end
    return low
  end

  function kind.load(cell)
    local text = call('HGET', cell.key, 'h')
    cell.chunks, cell.added, cell.times, cell.gone_chunks = {}, 0, 0, {}
    cell.keep, cell.needed, cell.spent_of, cell.leaves_at = cell.longest, seconds, {}, {}
    if not text then return call('EXISTS', cell.key) == 0 end
    local newest, keep, needed, rest = match(text, '^(%d+) (%d+) (%d+);(.*)$')
    newest, keep, needed = tonumber(newest), tonumber(keep), tonumber(needed)
    if not newest or newest > MAX_NUMBER then return false end
    if newest + keep <= now then
      -- All have left: it equals an absent one.
      cell.gone = true
      return true
    end
    if keep > cell.longest and seconds - needed <= max(KEEP_UNUSED, 2 * quotient(keep, 1000000)) then
      cell.keep, cell.needed = keep, needed
    elseif keep < cell.longest then
      -- Kept for longer from now on, also when the charge is refused.
      cell.changed = true
    end
    local chunks, number = cell.chunks, 0
    for id, first, count, sum in gmatch(rest, '(%d+) (%d+) (%d+) (%d+);') do
      number = number + 1
      chunks[number] = {
        id = id, first = tonumber(first), count = tonumber(count), sum = tonumber(sum),
      }
      cell.times = cell.times + tonumber(count)
    end
    if number == 0 then return false end
    cell.newest = newest
    if newest > now then cell.changed = true end
    return true
  end

  -- Of a chunk: how many times are at or before `edge`, their units, and where the text goes on.
  local function expired(cell, chunk, edge)
    local count, units, from = 0, 0, 1
    for time, cost, after in gmatch(text_of(cell, chunk), '(%d+) (%d+);()') do
      if tonumber(time) > edge then break end
      count, units, from = count + 1, units + tonumber(cost), after
    end
    return count, units, from
  end

  -- Units of the log that count in a window of this length, without those of this call.
  function kind.spent(cell, length)
    local spent = cell.spent_of[length]
    if spent then return spent end
    spent = 0
    if cell.newest and cell.newest + length > now then
      local edge = now - length
      local at = chunk_at(cell, edge)
      if at > 0 then
        local _, gone = expired(cell, cell.chunks[at], edge)
        spent = cell.chunks[at].sum - gone
      end
      for n = at + 1, #cell.chunks do spent = spent + cell.chunks[n].sum end
    end
    cell.spent_of[length] = spent
    return spent
  end

  -- When `above` units of those that count have left the window, from now on.
  local function leaves(cell, length, above)
    local edge, freed = now - length, 0
    for n = max(1, chunk_at(cell, edge)), #cell.chunks do
      local chunk = cell.chunks[n]
      if chunk.first <= edge or freed + chunk.sum >= above then
        for time, cost in gmatch(text_of(cell, chunk), '(%d+) (%d+);') do
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

  -- `above`: how far the refused charge is above the limit.
  function kind.numbers(cell, reply, length, above)
    local reset, fits = 0, 0
    local stored = kind.spent(cell, length)
    if cell.added > 0 then
      reset = length
    elseif cell.newest then
      reset = max(0, min(cell.newest, now) + length - now)
    end
    if above > stored then
      fits = length
    elseif above > 0 then
      local key = length .. ' ' .. above
      fits = cell.leaves_at[key] or leaves(cell, length, above)
      cell.leaves_at[key] = fits
    end
    local last = cell.chunks[#cell.chunks]
    local id = 1
    if last then id = last.count < MAX_CHUNK and last.id or last.id + 1 end
    local n = #reply
    reply[n + 1], reply[n + 2] = tonumber(id), stored + cell.added
    reply[n + 3], reply[n + 4] = reset, fits
  end

  -- The chunk of a time that was charged: where it was written, or where it was moved to since.
  local function chunk_of(cell, time, id)
    for n = #cell.chunks, 1, -1 do
      local chunk = cell.chunks[n]
      if tonumber(chunk.id) == id and chunk.first <= time then return chunk end
    end
    return cell.chunks[chunk_at(cell, time)]
  end

  local function take_back(cell, chunk, units, at)
    local word = format('%.0f ', at)
    local text, from = text_of(cell, chunk), 1
    if string.sub(text, 1, #word) ~= word then
      -- (With the mark before it: a digit would be met at every other place.)
      from = string.find(text, ';' .. word, 1, true)
      if not from then return nil end
      from = from + 1
    end
    local cost = match(text, '^(%d+);', from + #word)
    if not cost then return nil end
    local rest = from + #word + #cost + 1
    local gone = min(units, tonumber(cost))
    local left = tonumber(cost) - gone
    if left > 0 then
      chunk.text = concat({ string.sub(text, 1, from - 1), word, format('%.0f;', left),
        string.sub(text, rest) })
    else
      chunk.text = string.sub(text, 1, from - 1) .. string.sub(text, rest)
      chunk.count, cell.times = chunk.count - 1, cell.times - 1
      chunk.first = tonumber(match(chunk.text, '^%d+')) or chunk.first
    end
    chunk.sum, chunk.changed = chunk.sum - gone, true
    return gone
  end

  function kind.give(cell, units, at, id)
    if #cell.chunks == 0 then return end
    local chunk = chunk_of(cell, at, id)
    if not chunk then return end
    local gone = take_back(cell, chunk, units, at)
    if not gone then
      chunk = cell.chunks[chunk_at(cell, at)]
      gone = chunk and take_back(cell, chunk, units, at)
    end
    if not gone then return end
    cell.changed, cell.moved, cell.leaves_at = true, true, {}
    for length, spent in pairs(cell.spent_of) do
      if at > now - length then cell.spent_of[length] = spent - gone end
    end
  end

  local function remove(cell, n)
    local chunk = table.remove(cell.chunks, n)
    cell.times = cell.times - chunk.count
    cell.gone_chunks[#cell.gone_chunks + 1] = chunk.id
  end

  -- The times of chunk `n` move to the front of the next one, or to the end of the one before.
  local function merge(cell, n)
    local one, two = cell.chunks[n], cell.chunks[n + 1]
    two.text = text_of(cell, one) .. text_of(cell, two)
    two.first, two.count, two.sum = one.first, one.count + two.count, one.sum + two.sum
    two.changed = true
    cell.times = cell.times + one.count
    remove(cell, n)
  end

  -- What is ahead of the clock, and what is of this very instant, is one time, now.
  local function pull_back(cell)
    while #cell.chunks > 0 and cell.newest >= now do
      local last = cell.chunks[#cell.chunks]
      if last.first >= now then
        cell.added = cell.added + last.sum
        remove(cell, #cell.chunks)
        last = cell.chunks[#cell.chunks]
        cell.newest = last and tonumber(last_time(text_of(cell, last))) or 0
      else
        local kept, count, sum, newest = {}, 0, 0, last.first
        for time, cost in gmatch(text_of(cell, last), '(%d+) (%d+);') do
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

  local function add(cell)
    local last = cell.chunks[#cell.chunks]
    if not last or last.count >= MAX_CHUNK then
      local id = last and format('%.0f', last.id + 1) or '1'
      last = { id = id, first = now, count = 0, sum = 0, text = '' }
      cell.chunks[#cell.chunks + 1] = last
    end
    last.text = text_of(cell, last) .. format('%.0f %.0f;', now, cell.added)
    if last.count == 0 then last.first = now end
    last.count, last.sum, last.changed = last.count + 1, last.sum + cell.added, true
    cell.times, cell.newest, cell.added = cell.times + 1, now, 0
  end

  -- Drops chunks that have left every window, and keeps the directory short: what is empty goes,
  -- small neighbours become one, and of too many times the oldest chunk becomes one time.
  local function tidy(cell)
    while #cell.chunks > 1 and cell.chunks[2].first + cell.keep <= now do remove(cell, 1) end
    local front = cell.chunks[1]
    if front and front.first + cell.keep <= now then
      local count, units, from = expired(cell, front, now - cell.keep)
      if count >= MANY_EXPIRED or count == front.count then
        front.text, front.changed = string.sub(text_of(cell, front), from), true
        front.count, front.sum, cell.times = front.count - count, front.sum - units, cell.times - count
        front.first = tonumber(match(front.text, '^%d+')) or now
      end
    end
    for n = #cell.chunks, 1, -1 do
      local chunk, next = cell.chunks[n], cell.chunks[n + 1]
      if chunk.count == 0 then
        remove(cell, n)
      elseif next and chunk.count + next.count <= SMALL_CHUNK then
        merge(cell, n)
      end
    end
    if cell.times > MAX_TIMES and #cell.chunks > 1 then
      local chunk = cell.chunks[1]
      local time = last_time(text_of(cell, chunk)) or '0'
      cell.times = cell.times - chunk.count + 1
      chunk.text, chunk.first = format('%s %.0f;', time, chunk.sum), tonumber(time)
      chunk.count, chunk.changed = 1, true
      merge(cell, 1)
    end
  end

  function kind.save(cell)
    if cell.gone then
      call('DEL', cell.key)
    elseif cell.newest then
      pull_back(cell)
    end
    if cell.added > 0 then add(cell) end
    tidy(cell)
    local last = cell.chunks[#cell.chunks]
    if not last then
      call('DEL', cell.key)
      return
    end
    if cell.longest >= cell.keep then cell.keep, cell.needed = cell.longest, seconds end
    if cell.moved then cell.newest = tonumber(last_time(text_of(cell, last))) or last.first end
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
    -- First, since a number may be used again.
    if #cell.gone_chunks > 0 then call('HDEL', cell.key, unpack(cell.gone_chunks)) end
    call(unpack(fields))
    local rest = max(0, cell.newest + cell.keep - now)
    call('PEXPIRE', cell.key, format('%.0f', ceil(rest / 1000) + 1))
  end

  return kind
end

local log

-- What a bucket needs that is charged under several rates or remembers charges, made when a call names
-- one. Such a cell is `b2 at rates` and then for each rate `emission step fill most full
-- base since`,
-- and for each sum of what was charged lately, oldest first, `last units`: limit/buckets.rs says
-- what they are.
local function make_buckets()
  local kind = {}

  -- Spends, and no more than that so much is spent then.
  local function charged(rate, most, full, units, at)
    local from = stepped(at, rate.step)
    return max(full, min(max(full, from) + units * rate.emission, from + most))
  end

  local function put(cell, emission, step, fill, most, full)
    local rate = {
      emission = emission, step = step, fill = fill, most = most, full = full, base = full, since = now,
    }
    cell.rates[#cell.rates + 1] = rate
    return rate
  end

  -- A cell that had one rate and no memory.
  function kind.begin(cell)
    cell.rates, cell.recent = {}, {}
    if cell.spent > 0 then
      put(cell, cell.emission, cell.step, cell.fill, max(cell.fill, cell.spent),
        stepped(now, cell.step) + cell.spent)
    end
  end

  function kind.load(cell, text)
    local at, count, rest = match(text, '^b2 (%d+) (%d+)([ %d]*)$')
    at, count = tonumber(at), tonumber(count)
    if not at or at > MAX_NUMBER or count == 0 or count > MAX_RATES then return false end
    cell.rates, cell.recent = {}, {}
    local numbers, many = {}, 0
    for number in gmatch(rest, '%d+') do
      many = many + 1
      numbers[many] = tonumber(number)
      if numbers[many] > MAX_NUMBER then return false end
    end
    if many < 7 * count or fmod(many - 7 * count, 2) > 0 then return false end
    local idle = true
    for n = 0, count - 1 do
      local first = 7 * n
      local rate = {
        emission = numbers[first + 1], step = numbers[first + 2], fill = numbers[first + 3],
        most = numbers[first + 4], full = numbers[first + 5], base = numbers[first + 6],
        since = numbers[first + 7],
      }
      if rate.emission == 0 then return false end
      if at > now then
        local ahead = stepped(at, rate.step) - stepped(now, rate.step)
        rate.full, rate.base = max(0, rate.full - ahead), max(0, rate.base - ahead)
        rate.since = min(rate.since, now)
      end
      cell.rates[n + 1] = rate
      idle = idle and rate.full <= stepped(now, rate.step)
    end
    for n = 7 * count + 1, many, 2 do
      cell.recent[#cell.recent + 1] = { last = min(numbers[n], now), units = numbers[n + 1] }
    end
    -- One that is idle and has not expired yet is as one that has.
    if idle then
      cell.rates, cell.recent, cell.changed = {}, {}, true
    elseif at > now then
      cell.changed = true
    end
    return true
  end

  -- The bucket of a rate; it is made where the cell has none, and begins with the most units that are
  -- spent under any other.
  function kind.rate(cell, emission, step, fill, capacity)
    local rates = cell.rates
    for n = 1, #rates do
      local one = rates[n]
      if one.emission == emission and one.step == step and one.fill == fill then
        one.most = max(one.most, capacity)
        return one
      end
    end
    local function carry(other, time, at)
      local spent = max(0, time - stepped(at, other.step))
      spent = carried(spent, other.emission, emission, fill)
      return spent > 0 and stepped(at, step) + spent or 0
    end
    local full, source = 0, nil
    for n = 1, #rates do
      local other = carry(rates[n], rates[n].full, now)
      if other > full then full, source = other, rates[n] end
    end
    if #rates >= MAX_RATES then table.remove(rates, 1) end
    local own = put(cell, emission, step, fill, capacity, full)
    if source then
      -- What is given back later of what was charged under the other comes back here too.
      own.base, own.since, cell.changed = carry(source, source.base, source.since), source.since, true
    end
    return own
  end

  local function remember(cell, units)
    local rates, recent, fastest, slowest = cell.rates, cell.recent, MAX_NUMBER, 0
    for n = 1, #rates do
      fastest, slowest = min(fastest, rates[n].fill), max(slowest, rates[n].fill)
    end
    local step, last = max(1, quotient(fastest, SUMS_PER_FILL)), recent[#recent]
    if last and quotient(now, step) <= quotient(last.last, step) then
      last.last, last.units = now, min(last.units + units, MAX_UNITS)
      return
    end
    if not last then
      for n = 1, #rates do rates[n].base, rates[n].since = rates[n].full, now end
    end
    if #recent >= MAX_RECENT and recent[1].last + slowest <= now then
      local oldest = table.remove(recent, 1)
      for n = 1, #rates do
        local one = rates[n]
        if oldest.last >= one.since then
          one.base = charged(one, one.most, one.base, oldest.units, oldest.last)
          one.since = oldest.last + 1
        end
      end
    elseif #recent >= MAX_RECENT then
      -- The two that are closest in time become one.
      local closest = 1
      for n = 2, #recent - 1 do
        local gap = recent[n + 1].last - recent[n].last
        if gap < recent[closest + 1].last - recent[closest].last then closest = n end
      end
      local earlier = table.remove(recent, closest)
      recent[closest].units = min(recent[closest].units + earlier.units, MAX_UNITS)
    end
    recent[#recent + 1] = { last = now, units = units }
  end

  -- Spends under a rate, whether it fits or not; under the others at most what is there.
  function kind.spend(cell, units, own)
    cell.changed = true
    local idle = true
    for n = 1, #cell.rates do
      local one = cell.rates[n]
      idle = idle and one.full <= stepped(now, one.step)
    end
    if idle then
      own.full, own.base, own.since = 0, 0, now
      cell.rates, cell.recent = { own }, {}
    end
    if cell.remembers or cell.recent[1] then remember(cell, units) end
    -- The one that was charged last is the last.
    local rates, place = cell.rates, 1
    while rates[place] ~= own do place = place + 1 end
    if place < #rates then table.insert(rates, table.remove(rates, place)) end
    for n = 1, #rates do
      local one = rates[n]
      if one == own then
        one.full = min(max(one.full, stepped(now, one.step)) + units * one.emission, MAX_NUMBER)
        one.most = max(one.most, one.full - stepped(now, one.step))
      else
        one.full = charged(one, one.fill, one.full, units, now)
      end
    end
  end

  -- Gives back what was charged at an instant, where it is remembered.
  function kind.give(cell, units, at)
    local recent, sum = cell.recent, nil
    for n = #recent, 1, -1 do
      if recent[n].last < at then break end
      sum = recent[n]
    end
    local known = false
    for n = 1, #cell.rates do known = known or at >= cell.rates[n].since end
    if not sum or not known then return end
    units = min(units, sum.units)
    sum.units, cell.changed = sum.units - units, true
    for n = 1, #cell.rates do
      local one = cell.rates[n]
      if at >= one.since then
        local anew = one.base
        for k = 1, #recent do
          if recent[k].last >= one.since then
            anew = charged(one, one.most, anew, recent[k].units, recent[k].last)
          end
        end
        -- Without them it is as full as the remembered charges say; or, where no other rate has found it
        -- empty, as it is less the units, but for what can have come back since.
        local least = one.full - units * one.emission
        if #cell.rates == 1 then
          anew = min(anew, least + max(0, stepped(now, one.step) - stepped(at, one.step)))
        end
        one.full = min(one.full, max(least, anew))
      end
    end
  end

  -- What is written, and until when it counts; nothing if it equals an absent one.
  function kind.text(cell)
    local texts, idle = { format('b2 %.0f %d', now, #cell.rates) }, now
    for n = 1, #cell.rates do
      local one = cell.rates[n]
      texts[n + 1] = format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f', one.emission, one.step, one.fill,
        one.most, one.full, one.base, one.since)
      if one.full > stepped(now, one.step) then
        idle = max(idle, one.step > 0 and stepped(one.full + one.step - 1, one.step) or one.full)
      end
    end
    if idle <= now then return nil end
    for n = 1, #cell.recent do
      texts[#texts + 1] = format('%.0f %.0f', cell.recent[n].last, cell.recent[n].units)
    end
    return concat(texts, ' '), idle
  end

  return kind
end

local buckets

local function unreadable(cell)
  return redis.error_reply('TOLLGATE the cell ' .. cell.key .. ' was not written by tollgate')
end

-- One counter as of now: another window of its own, and nothing of those that have passed.
local function as_of_now(counter, sliding)
  local length, written = counter.length, counter.window
  local index = quotient(now, length)
  counter.at = now
  if written == index + 1 then
    -- The clock may have run back by a moment: read as of its window's beginning.
    index, counter.at = written, written * length
  elseif written > index then
    -- Of a clock that was ahead: pulled back.
    written, counter.changed = index, true
  end
  if index == written + 1 then
    counter.current, counter.previous = 0, sliding and counter.current or 0
  elseif index > written then
    counter.current, counter.previous = 0, 0
  end
  counter.window = index
end

-- What cells with several windows need, made when a call names one. Such a cell is `w2` or `f2` and
-- then `window current previous length judged` for each window; `judged`: in which second a charge was
-- last judged on it.
local function make_windows()
  local kind = {}

  local function read(cell, text)
    local counters, head = cell.counters, cell.kind == SLIDING and 'w' or 'f'
    local window, current, length = match(text, '^' .. head .. '1 (%d+) (%d+) (%d+)')
    local previous = 0
    if window and head == 'w' then
      window, current, previous, length = match(text, '^w1 (%d+) (%d+) (%d+) (%d+)$')
    end
    if window then
      counters[1] = {
        window = tonumber(window), current = tonumber(current), previous = tonumber(previous),
        length = tonumber(length), judged = seconds,
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
      local one = counters[n]
      if one.length == 0 or one.current > MAX_UNITS or one.previous > MAX_UNITS then return false end
      as_of_now(one, cell.kind == SLIDING)
      cell.changed = cell.changed or one.changed
      units = units + one.current + one.previous
    end
    -- One that is idle and has not expired yet is as one that has.
    if units == 0 then cell.counters = {} end
    return true
  end

  -- Drops windows that nobody needs: those that no charge was judged on for long, or for which there
  -- is no room, the longest unused first.
  local function drop_unneeded(cell)
    local kept = {}
    for n = 1, #cell.counters do
      local one = cell.counters[n]
      local long = max(KEEP_UNUSED, 2 * quotient(one.length, 1000000))
      if one.needed or seconds - one.judged <= long then kept[#kept + 1] = one end
    end
    while #kept > MAX_COUNTERS do
      local oldest
      for n = 1, #kept do
        local one = kept[n]
        if not one.needed and not (oldest and kept[oldest].judged <= one.judged) then oldest = n end
      end
      if not oldest then break end
      table.remove(kept, oldest)
    end
    if #kept < #cell.counters then cell.counters, cell.changed = kept, true end
  end

  -- Gives a cell the windows that its limit has. A new one begins with what is known of it: with the
  -- units of the shortest window that covers it, else with those of the longest.
  local function align(cell, lengths)
    local counters, known = cell.counters, #cell.counters
    for i = 1, #lengths do
      local length, found, source, longest = lengths[i], nil, nil, nil
      for n = 1, known do
        local one = counters[n]
        if one.length == length then found = one end
        if one.length > length and not (source and source.length <= one.length) then source = one end
        if not (longest and longest.length >= one.length) then longest = one end
      end
      if not found then
        source = source or longest
        local current, at = 0, now
        if source then current, at = min(counted(source), MAX_UNITS), source.at end
        found = {
          window = quotient(at, length), current = current, previous = 0, length = length,
          judged = seconds,
        }
        found.at = found.window == quotient(now, length) and now or found.window * length
        counters[#counters + 1] = found
        -- Kept also when the charge is refused: what it begins with is read once.
        if known > 0 then cell.changed = true end
      end
      found.needed = true
      cell.by_length[length] = found
    end
    if #counters > #lengths then drop_unneeded(cell) end
  end

  function kind.load(cell, text, lengths)
    cell.counters, cell.by_length, cell.lengths = {}, {}, lengths
    if text and not read(cell, text) then return false end
    align(cell, lengths)
    return true
  end

  function kind.text(cell)
    local texts = { cell.kind == SLIDING and 'w2' or 'f2' }
    for n = 1, #cell.counters do
      local one = cell.counters[n]
      texts[n + 1] = format('%.0f %.0f %.0f %.0f %.0f', one.window, one.current, one.previous,
        one.length, one.judged)
    end
    return concat(texts, ' ')
  end

  return kind
end

local several

-- Reads every cell; of a log, its directory.
local cells, next_arg = {}, 2
for n = 1, #KEYS do
  local kind, windows = ARGV[next_arg], tonumber(ARGV[next_arg + 1])
  next_arg = next_arg + 2
  local cell = { key = KEYS[n], kind = kind, changed = false }
  cells[n] = cell
  if kind == BUCKET then
    -- `b1 full at emission step fill`: full again at `full`, written at `at`
    cell.spent, cell.emission, cell.step, cell.fill = 0, 1, 0, 0
    cell.remembers = windows == 1
    local text = call('GET', cell.key)
    local full, at, emission, step, fill
    if text then full, at, emission, step, fill = match(text, '^b1 (%d+) (%d+) (%d+) (%d+) (%d+)$') end
    if full then
      full, at, emission, step = tonumber(full), tonumber(at), tonumber(emission), tonumber(step)
      if emission == 0 or full > MAX_NUMBER or at > MAX_NUMBER then return unreadable(cell) end
      local from = stepped(now, step)
      if at > now then
        full = full - (stepped(at, step) - from)
        cell.changed = true
      end
      cell.spent, cell.emission, cell.step = min(max(0, full - from), MAX_NUMBER / 2), emission, step
      cell.fill = tonumber(fill)
    elseif text then
      buckets = buckets or make_buckets()
      if not buckets.load(cell, text) then return unreadable(cell) end
    end
  elseif kind == LOG then
    cell.longest = tonumber(ARGV[next_arg + windows - 1])
    next_arg = next_arg + windows
    log = log or make_log()
    if not log.load(cell) then return unreadable(cell) end
  else
    -- `w1 window current previous length` of a sliding_window, `f1 window current length` of a
    -- fixed_window: the only counter of the cell, which it is itself
    local text, length = call('GET', cell.key), tonumber(ARGV[next_arg])
    local window, current, previous, written, is_one
    if text and windows == 1 then
      if kind == SLIDING then
        window, current, previous, written = match(text, '^w1 (%d+) (%d+) (%d+) (%d+)$')
      else
        window, current, written = match(text, '^f1 (%d+) (%d+) (%d+)$')
      end
      is_one = window and tonumber(written) == length
    end
    if is_one then
      cell.window, cell.current, cell.previous = tonumber(window), tonumber(current), tonumber(previous or 0)
      cell.length = length
      if cell.current > MAX_UNITS or cell.previous > MAX_UNITS then return unreadable(cell) end
      as_of_now(cell, kind == SLIDING)
    elseif windows == 1 and not text then
      cell.window, cell.current, cell.previous = quotient(now, length), 0, 0
      cell.length, cell.at = length, now
    else
      local lengths = {}
      for i = 1, windows do lengths[i] = tonumber(ARGV[next_arg + i - 1]) end
      several = several or make_windows()
      if not several.load(cell, text, lengths) then return unreadable(cell) end
    end
    next_arg = next_arg + windows
  end
end

-- The bucket that a part is judged on: the cell itself, where it has one rate and remembers nothing.
local function bucket_of(cell, emission, step, fill, capacity)
  if not cell.rates then
    if not cell.remembers then
      if cell.spent == 0 then cell.emission, cell.step, cell.fill = emission, step, fill end
      if cell.emission == emission and cell.step == step and cell.fill == fill then return cell end
    end
    buckets = buckets or make_buckets()
    buckets.begin(cell)
  end
  return buckets.rate(cell, emission, step, fill, capacity)
end

local function spent_of(bucket)
  return bucket.spent or max(0, bucket.full - stepped(now, bucket.step))
end

-- Adds units to a cell; to a bucket under the rate `own`.
local function spend(cell, units, b, own)
  cell.changed = true
  if own == cell then
    cell.spent = cell.spent + units * cell.emission
  elseif own then
    buckets.spend(cell, units, own)
  elseif cell.kind == LOG then
    cell.added = cell.added + units
  elseif not cell.counters then
    cell.current = min(cell.current + units, MAX_UNITS)
  else
    for n = 1, #cell.counters do
      local one = cell.counters[n]
      one.current = min(one.current + units, MAX_UNITS)
    end
    cell.by_length[b].judged = seconds
  end
end

-- Gives back what a counter was charged at an instant, where it still counts.
local function give_back(counter, units, at)
  local window = quotient(at, counter.length)
  if counter.window == window then
    counter.current = max(0, counter.current - units)
  elseif counter.window == window + 1 then
    counter.previous = max(0, counter.previous - units)
  end
end

-- Settles run after run.
local reply = { tonumber(ARGV[1]), now }
while ARGV[next_arg] do
  local op, n, m = ARGV[next_arg], tonumber(ARGV[next_arg + 1]), tonumber(ARGV[next_arg + 2])
  next_arg = next_arg + 3
  local first, many = next_arg, n
  local cell, cost, a, b, own
  for _ = 1, m do
    cell, cost = cells[tonumber(ARGV[next_arg])], tonumber(ARGV[next_arg + 1])
    a, b, own = tonumber(ARGV[next_arg + 2]), tonumber(ARGV[next_arg + 3]), nil
    next_arg = next_arg + 4
    local kind, room, unit = cell.kind, 0, 1
    if kind == BUCKET then
      local step, fill = tonumber(ARGV[next_arg]), a * b
      if op ~= 'r' then
        local capacity = fill + ARGV[next_arg + 1]
        own = bucket_of(cell, a, step, fill, capacity)
        room = max(0, capacity - spent_of(own))
      elseif not cell.rates and cell.emission == a and cell.step == step and cell.fill == fill then
        own = cell
      end
      unit, next_arg = a, next_arg + 2
    elseif kind == LOG then
      room = max(0, a - log.spent(cell, b) - cell.added)
    else
      room = max(0, a - counted(cell.counters and cell.by_length[b] or cell))
    end
    if op == 's' or op == 'q' then
      if cost > 0 then many = min(many, quotient(room, cost * unit)) end
    elseif op == 'r' then
      local before = tonumber(ARGV[next_arg])
      next_arg = next_arg + 1
      if cell.rates then
        buckets.give(cell, cost, n)
      elseif own then
        -- Not remembered: all but what came back since.
        local came = max(0, stepped(now, cell.step) - stepped(n, cell.step))
        cell.spent, cell.changed = max(0, cell.spent - max(0, cost * a - came)), true
      elseif kind == BUCKET then
        -- Of another rate, and charged before this one: nothing is left of it.
      elseif kind == LOG then
        log.give(cell, cost, n, before)
      else
        -- `before` has a bit for each window of the cell in the call that the limit had at the charge.
        if cell.counters then
          for k = 1, #cell.lengths do
            if fmod(before, 2) == 1 then give_back(cell.by_length[cell.lengths[k]], cost, n) end
            before = floor(before / 2)
          end
        elseif before > 0 then
          give_back(cell, cost, n)
        end
        cell.changed = true
      end
    else
      local units = cost
      if op == 'c' then
        units = min(cost, quotient(room, unit))
      elseif kind == BUCKET then
        units = max(0, min(cost, quotient(MAX_NUMBER / 2 - spent_of(own), unit)))
      elseif kind == LOG then
        units = max(0, min(cost, MAX_UNITS - log.spent(cell, b) - cell.added))
      end
      if units > 0 then spend(cell, units, b, own) end
    end
  end
  if op == 's' or op == 'q' then
    reply[#reply + 1] = many
    local from = first
    for _ = 1, m do
      if m > 1 then
        cell, cost = cells[tonumber(ARGV[from])], tonumber(ARGV[from + 1])
        a, b, own = tonumber(ARGV[from + 2]), tonumber(ARGV[from + 3]), nil
        from = from + 4
        if cell.kind == BUCKET then
          own = bucket_of(cell, a, tonumber(ARGV[from]), a * b, a * b + ARGV[from + 1])
          from = from + 2
        end
      end
      local kind, at = cell.kind, #reply
      if kind == BUCKET then
        reply[at + 1] = spent_of(own)
      elseif kind == LOG then
        local above = 0
        if many < n and cost > 0 and cost <= a then
          above = max(0, log.spent(cell, b) + cell.added + (many + 1) * cost - a)
        end
        log.numbers(cell, reply, b, above)
      else
        local counter = cell.counters and cell.by_length[b] or cell
        reply[at + 1], reply[at + 2] = counter.window, counter.current
        if kind == SLIDING then reply[at + 3] = counter.previous end
      end
      local units = many * cost
      if op == 's' and units > 0 then spend(cell, units, b, own) end
    end
  end
end

-- Until when a counter counts, or nil.
local function idle_at(counter, sliding)
  if counter.current + counter.previous == 0 then return nil end
  if sliding then return (counter.window + (counter.current > 0 and 2 or 1)) * counter.length end
  return (counter.window + 1) * counter.length
end

-- Writes what changed, until it equals an absent one.
for n = 1, #cells do
  local cell = cells[n]
  if not cell.changed then
    -- as it was
  elseif cell.kind == LOG then
    log.save(cell)
  else
    local text, idle
    if cell.rates then
      text, idle = buckets.text(cell)
    elseif cell.kind == BUCKET then
      if cell.spent > 0 then
        local step = cell.step
        local full = stepped(now, step) + cell.spent
        text = format('b1 %.0f %.0f %.0f %.0f %.0f', full, now, cell.emission, step, cell.fill)
        idle = step > 0 and stepped(full + step - 1, step) or full
      end
    else
      local sliding, one, counters = cell.kind == SLIDING, cell, cell.counters
      if counters then
        one = counters[1]
        for k = 1, #counters do
          local at = idle_at(counters[k], sliding)
          if at and not (idle and idle >= at) then idle = at end
        end
      else
        idle = idle_at(cell, sliding)
      end
      if not idle then
        -- It equals an absent one.
      elseif counters and #counters > 1 then
        text = several.text(cell)
      elseif sliding then
        text = format('w1 %.0f %.0f %.0f %.0f', one.window, one.current, one.previous, one.length)
      else
        text = format('f1 %.0f %.0f %.0f', one.window, one.current, one.length)
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
