-- Carries chunks of text between the nodes of a fleet: a node says that it lives, writes the chunks of its own that have
-- changed, and reads those that other nodes have written since it last asked.
--
-- KEYS[1]        a sorted set: for each node, until when it counts as live
-- KEYS[2]        a sorted set: for each chunk, `node:number`, the sequence number of its latest write
-- KEYS[3]        a hash: for each chunk, its text
-- KEYS[4]        a sorted set: for each chunk, when it ends
-- KEYS[5]        a hash: `mark`, a random text of this history of the store, `sequence`, the number of the latest write, and
--                `time`, that of the latest call
-- ARGV[1]        the node: 16 hex digits
-- ARGV[2]        a random text: 16 hex digits, the mark if a history begins
-- ARGV[3..5]     from the previous reply to the node: the mark, the cursor, and the time in milliseconds; `- 0 0` at first
-- ARGV[6]        the node counts as live for this long, at most ten minutes
-- ARGV[7]        the largest number of bytes of texts in the reply, unless the first text alone is longer
-- ARGV[8]        `leave` drops the node at once; `stay` otherwise
-- ARGV           then, for each chunk to write: number (at most 65,535), time to live, text; an empty text deletes the chunk
-- returns        the time in microseconds, the mark, the cursor, `more` if more can be read at once, the number of nodes,
--                `anew` if reading began with the oldest chunk, otherwise `-`; then, for each chunk: `node:number`, text
--
-- Times are in milliseconds since the epoch, spans in milliseconds, unless stated otherwise. Example, from node 1 with nothing
-- read: `0000000000000001 5f00000000000000 - 0 0 3000 65536 stay 7 60000 hello` writes the chunk `0000000000000001:7` for a
-- minute.
--
-- Chunks are read in the order of their latest writes, so a chunk that is written again before a node reads it is read once.
-- The cursor of a node has no meaning in another history: in that of another store, or after this one has lost writes. The
-- store has lost writes if it does not know of the node's previous call. Such a node reads anew and has to write all of its
-- chunks again. A chunk that is deleted is not read any more; the nodes that have read it are not told.
--
-- A node that lies cannot fill the server: there are at most 8,192 chunks of 64 KiB.

local call, ARGV, KEYS = redis.call, ARGV, KEYS
local NODES, ORDER, TEXTS, ENDS, STATE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local clock = call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local floor, max, min = math.floor, math.max, math.min
local find, format, match, sub = string.find, string.format, string.match, string.sub
local now = floor(micros / 1000)
local MAX_NODES = 1024 -- the node that is live for the shortest time is dropped
local MAX_LIVENESS = 600000
local MAX_CHUNKS = 8192 -- the chunk that was written first is dropped, whatever it says of its end
local MAX_TEXT = 65536 -- bytes; a longer text is not written
local MAX_WRITTEN = 256 -- chunks that a call writes; further ones are not written
local MAX_READ = 256 -- chunks in a reply
local MAX_DROPPED = 256 -- ended chunks that a call drops
local MAX_BACK = 1000 -- servers that replace one another have clocks that agree so well
local MAX_SPAN = 366 * 86400 * 1000
local MAX_SEQUENCE = 2 ^ 52 -- numbers are exact up to here
local KEPT_LONGER = 60000 -- the keys expire this long after everything in them has ended

local function number(text, largest)
  return min(tonumber(match(text or '', '^%d+$') or '0'), largest)
end

local function decimal(value)
  return format('%.0f', value)
end

local function is_id(text)
  return #text == 16 and match(text, '^%x+$')
end

local node, liveness = ARGV[1], max(1, number(ARGV[6], MAX_LIVENESS))
if not is_id(node) or not is_id(ARGV[2]) then return {} end

-- Other programs may have written anything here, and a server without room may have evicted some of the keys. Then a new
-- history begins, and the nodes write their chunks again.
for n, kind in ipairs({ 'zset', 'zset', 'hash', 'zset', 'hash' }) do
  local found = call('TYPE', KEYS[n]).ok
  if found ~= kind and found ~= 'none' then call('DEL', KEYS[n]) end
end
local mark = call('HGET', STATE, 'mark') or ''
local sequence = tonumber(match(call('HGET', STATE, 'sequence') or '', '^%d+$')) or math.huge
local count = call('ZCARD', ORDER)
local is_complete = call('HLEN', TEXTS) == count and call('ZCARD', ENDS) == count
-- Where the clock was set back, what was written before would count again when its time comes once more.
local is_back = number(call('HGET', STATE, 'time'), 2 ^ 53) > now + MAX_BACK
if is_back or not (is_complete and is_id(mark) and sequence <= MAX_SEQUENCE and count <= MAX_CHUNKS) then
  call('DEL', ORDER, TEXTS, ENDS, STATE)
  mark, sequence = ARGV[2], 0
  call('HSET', STATE, 'mark', mark)
end

-- Whether the cursor of the node has a meaning. Where there is no room for all nodes, a node that is not there may have been
-- dropped, so that this says nothing.
local cursor, known_time = number(ARGV[4], MAX_SEQUENCE), number(ARGV[5], 2 ^ 53)
local live_until = call('ZSCORE', NODES, node)
local is_heard = live_until and tonumber(live_until) - liveness >= known_time
  or not live_until and call('ZCARD', NODES) >= MAX_NODES
local is_anew = ARGV[3] ~= mark or cursor > sequence or not is_heard
if is_anew then cursor = 0 end

if ARGV[8] == 'leave' then
  call('ZREM', NODES, node)
else
  -- The first write: a server that is full refuses it, and with it all that follows.
  call('ZADD', NODES, decimal(now + liveness), node)
end
-- After the clock of the server was set back, nodes of the future are dropped too. Those that live are back soon.
call('ZREMRANGEBYSCORE', NODES, '-inf', decimal(now))
call('ZREMRANGEBYSCORE', NODES, '(' .. decimal(now + MAX_LIVENESS), '+inf')
call('ZREMRANGEBYRANK', NODES, 0, -MAX_NODES - 1)

local function drop(chunks)
  if #chunks == 0 then return end
  call('ZREM', ORDER, unpack(chunks))
  call('HDEL', TEXTS, unpack(chunks))
  call('ZREM', ENDS, unpack(chunks))
end

drop(call('ZRANGEBYSCORE', ENDS, '-inf', decimal(now), 'LIMIT', 0, MAX_DROPPED))
for n = 9, min(#ARGV - 2, 9 + 3 * (MAX_WRITTEN - 1)), 3 do
  local name, text = match(ARGV[n], '^%d+$'), ARGV[n + 2]
  if name and tonumber(name) <= 65535 and #text <= MAX_TEXT then
    local chunk = node .. ':' .. decimal(tonumber(name))
    if text == '' then
      drop({ chunk })
    else
      sequence = sequence + 1
      call('ZADD', ORDER, decimal(sequence), chunk)
      call('HSET', TEXTS, chunk, text)
      call('ZADD', ENDS, decimal(now + number(ARGV[n + 1], MAX_SPAN)), chunk)
    end
  end
end
call('HSET', STATE, 'sequence', decimal(sequence), 'time', decimal(now))
local over = call('ZCARD', ORDER) - MAX_CHUNKS
if over > 0 then drop(call('ZRANGE', ORDER, 0, over - 1)) end

local last = tonumber(call('ZRANGE', ENDS, -1, -1, 'WITHSCORES')[2] or now)
local kept = min(max(liveness, last - now), MAX_SPAN) + KEPT_LONGER
for n = 1, 5 do call('PEXPIRE', KEYS[n], decimal(kept)) end

-- The text of a chunk that this node has to read, and the bytes that were looked at. Nodes write ASCII: other texts, which a
-- client could not read, are another program's.
local function text_of(chunk)
  if sub(chunk, 17) ~= match(chunk, ':%d+$') or not is_id(sub(chunk, 1, 16)) or #chunk > 22 then return nil, 0 end
  local ends = sub(chunk, 1, 16) ~= node and call('ZSCORE', ENDS, chunk)
  if not ends or tonumber(ends) <= now then return nil, 0 end
  local text = call('HGET', TEXTS, chunk) or ''
  local is_told = text ~= '' and #text <= MAX_TEXT and not find(text, '[\128-\255]')
  return is_told and text or nil, #text
end

-- Appends what lies behind a cursor. Returns the next cursor, and whether more can be read at once.
local function read(chunks, from)
  local max_bytes, bytes, seen = number(ARGV[7], MAX_READ * MAX_TEXT), 0, 0
  while true do
    local after = format('(%.17g', from)
    local found =
      call('ZRANGEBYSCORE', ORDER, after, decimal(sequence), 'WITHSCORES', 'LIMIT', 0, MAX_READ)
    for n = 1, #found, 2 do
      local text, size = text_of(found[n])
      if size > 0 then
        bytes, seen = bytes + size, seen + 1
        if seen > 1 and (bytes > max_bytes or #chunks == 2 * MAX_READ) then return from, true end
      end
      if text then
        chunks[#chunks + 1] = found[n]
        chunks[#chunks + 1] = text
      end
      from = tonumber(found[n + 1])
    end
    if #found < 2 * MAX_READ then return sequence, false end
  end
end

local chunks = {}
local next_cursor, has_more = read(chunks, cursor)
local reply = {
  decimal(micros), mark, decimal(next_cursor), has_more and 'more' or '-',
  decimal(call('ZCARD', NODES)), is_anew and 'anew' or '-',
}
for n = 1, #chunks do reply[#reply + 1] = chunks[n] end
return reply
