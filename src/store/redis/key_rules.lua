-- Keeps the rules that operators make for keys, and tells nodes what has changed.
--
-- KEYS[1]        a hash: the field `version`, the time of the latest change; `mark`, a random text of it; `ruled`, the version
--                at which rules changed last; for each rule a field, whose value is the time at which the rule ends, that at
--                which it was made, each with a blank behind it, and a text of the nodes; and for each rule that is `gone`, a
--                field `g` and its field, whose value is the time at which it was removed, and ` -` if neither this store nor
--                the node that removed it knew the rule: of those fewer are remembered, until a node tells that it knows it
-- KEYS[2]        a sorted set by version: the mark of each change, `version at mark`, and what nodes have to do once,
--                `number word key`, under the version at which this history heard of it
-- KEYS[3..6]     the bans, and the latest time (bans.lua, common.lua)
-- ARGV[1..2]     the version that the node knows, and its mark; 0: none
-- ARGV[3]        the mark of these changes
-- ARGV[4]        `all`: the node wants all rules, also if it knows them
-- ARGV[5]        the latest time that a store has told the node
-- ARGV[6]        the change up to which it has done what is to be done once: not more than the version, and less if it took over
--                what another process counted
-- ARGV           then changes:
--                  put field span text        adds a rule that lasts for `span`, or replaces it; it is made at this version
--                  drop field known           removes it, also for nodes that tell it later. `known`: the node knows the rule;
--                                             `-`: the key may have none
--                  reset key                  all nodes forget what the key has spent
--                  lift key                   all nodes and this store forget the ban of the key
--                or what a node knows from another history of the store, of which the later counts:
--                  keep field span made text  adds a rule, or replaces one that was made before
--                  gone field made            removes a rule that was made before, also one that is told later
--                  again number word key      `reset` or `lift`, which was the change of this number
--                  seen                       nothing, except that the version exceeds the one that the node knows
-- returns        the version, its mark and the time; then, if rules have changed since the version that the node knows, or it wants
--                all: `rules`, and for each rule `rule`, its field, the rest of its span, when it was made, its text; and for each
--                thing to do that this history heard of since the change up to which the node has done all `do`, the version at
--                which it heard of it, its number, word, key; and if things to do before a version are not kept any more, which the
--                node may have missed, `missed`, the version
--
-- Times are in microseconds since the epoch, spans in microseconds. Rules are made and removed at versions, never by the clocks of
-- nodes: so all agree which of two changes is later. Times do not go back, also in a store that has lost everything (common.lua): so
-- each change has a higher version than all changes that nodes have heard of before. A `put` of one rule more than 1,000 changes
-- nothing, and the reply is the word `full`. If what the node knows is not in the history of this store, the store has lost data or
-- is another one: nothing changes, and the reply is the word `lost`, except to `keep`, `gone`, `again` and `seen`, by which a node
-- tells it. A version that no clock can have told is such a one, and is not exceeded: the node finds the time in the reply, and
-- drops what is later.
--
-- Example: `7 a1 b2 - 7 7 drop o4711 known` on a store of version 7 with the mark a1 removes one rule; the reply is the version,
-- `b2`, the time, then all rules that are left. Fields that no node writes are left out; with thousands of them the reply is
-- `foreign`.

local call, ARGV, KEYS = redis.call, ARGV, KEYS
local format, match, sub, max, min =
  string.format, string.match, string.sub, math.max, math.min
local MAX_RULES = 1000
local MAX_MERGED = 4000 -- nodes that tell their rules again must not be refused, and must not fill the store
local MAX_GONE = 1000 -- as many as a node tells
local MAX_GONE_UNKNOWN = 100 -- of bans, and as many of overrides: each end of a rule that a key has not is one of these
local MAX_EVENTS = 2000 -- marks, and things to do
local KEEP_CHANGE = 86400 * 1000000 -- how long a node may be away that has banned the key before
local MAX_FORGIVEN = 32768 -- with so many keys, those without a ban are not kept: bans need the rest of the room (bans.lua)
local MAX_TEXT = 8192 -- bytes
local MAX_MARK = 32 -- bytes of a mark and of a version
local LENGTHS = { put = 4, keep = 5, drop = 3, gone = 3, again = 4, seen = 1 }
local RULINGS = { put = true, keep = true, gone = true }
local MERGES = { keep = true, gone = true, again = true, seen = true }

delete_foreign({ 'hash', 'zset', 'zset', 'hash', 'zset', 'string' })
if call('HLEN', KEYS[1]) > MAX_MERGED + MAX_GONE + 2 * MAX_GONE_UNKNOWN + 100 then return { 'foreign' } end
for _, field in ipairs({ 'mark', 'version', 'ruled' }) do
  if call('HSTRLEN', KEYS[1], field) > MAX_MARK then call('HDEL', KEYS[1], field) end
end
if call('ZCARD', KEYS[2]) > 2 * MAX_EVENTS then call('DEL', KEYS[2]) end

local time = read_time(KEYS[6], ARGV[5])
local now = time.now

local known, known_mark = tonumber(ARGV[1]) or 0, ARGV[2]
local version = tonumber(match(call('HGET', KEYS[1], 'version') or '', '^%d+$') or '0')
-- A node that is told of the future would take all changes until then for made ones.
if version - now > MAX_AHEAD then version = 0 end
local mark = match(call('HGET', KEYS[1], 'mark') or '', '^%w+$') or ''
local done = min(tonumber(ARGV[6]) or 0, known)
local first = ARGV[7]
local is_merge = MERGES[first]
local is_possible = known - now <= MAX_AHEAD

-- When a rule was removed, as nodes have told this history; -1: never. And whether nobody knew it.
local function gone_at(name)
  local field = 'g' .. name
  if call('HSTRLEN', KEYS[1], field) > MAX_MARK then call('HDEL', KEYS[1], field) end
  local text, unknown = match(call('HGET', KEYS[1], field) or '', '^(%d+)( ?-?)$')
  local at = tonumber(text or -1)
  return at <= now + MAX_AHEAD and at or -1, unknown == ' -'
end

local made_at = {} -- when each rule in force was made
local gone, gone_unknown = {}, { b = {}, o = {} } -- when each was removed that is remembered

-- The rules in force; and the fields of those that have ended by this clock, which may be ahead of those of nodes.
local function all()
  local rules, ended = {}, {}
  made_at, gone, gone_unknown = {}, {}, { b = {}, o = {} }
  for _, field in ipairs(call('HKEYS', KEYS[1])) do
    if match(field, '^g[bo]%x+$') then
      -- No rule lasts so long that a node could still tell it.
      local at, is_unknown = gone_at(sub(field, 2))
      if first and at < now - KEEP * 1000 then
        call('HDEL', KEYS[1], field)
      else
        local list = is_unknown and gone_unknown[sub(field, 2, 2)] or gone
        list[sub(field, 2)] = at
      end
    end
    -- Looked at before it is read: another program may have written anything.
    local is_rule = match(field, '^[bo]%x+$') and call('HSTRLEN', KEYS[1], field) <= MAX_TEXT
    local kept = is_rule and call('HGET', KEYS[1], field) or ''
    local till, made, text = match(kept, '^(%d+) (%d+) ([ -~]*)$')
    if till then
      if tonumber(till) > now then
        made = tonumber(made)
        if made > now + MAX_AHEAD then made = 0 end
        made_at[field] = made
        rules[#rules + 1] = { field = field, left = tonumber(till) - now, made = made, text = text }
      else
        ended[#ended + 1] = field
      end
    end
  end
  return rules, ended
end

-- A time that a node tells; zero: no store can have told it.
local function possible(text)
  local at = tonumber(text) or 0
  return at <= now + MAX_AHEAD and at or 0
end

-- The oldest change that is kept; zero: all are.
local function oldest_kept()
  if call('ZCARD', KEYS[2]) < MAX_EVENTS then return 0 end
  return tonumber(call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2])
end

local function is_known()
  if known == 0 then return true end
  if not is_possible then return false end
  if known >= version then return known == version and known_mark == mark end
  if call('ZSCORE', KEYS[2], format('%.0f at %s', known, known_mark)) then return true end
  -- What is older than everything that is kept cannot be told from another history.
  return known < oldest_kept()
end

-- Records what nodes have to do once, and that denials of the key are forgiven. A ban that was reported later stays.
local function record(number, word, key)
  call('ZADD', KEYS[2], 'NX', format('%.0f', version), format('%s %s %s', number, word, key))
  local known_ban = call('HGET', KEYS[4], key) or ''
  local level, till, forgive, since = match(known_ban, '^(%d+) (%d+) (%d+) (%d+)$')
  local over = tonumber(call('ZSCORE', KEYS[5], key) or 0)
  local reported_at = tonumber(call('ZSCORE', KEYS[3], key) or 0)
  if word == 'lift' and reported_at <= tonumber(number) then
    -- It is kept as one that ended then: a node that was away may report it later, or one that began since.
    level, till, forgive, over = 0, format('%.0f', min(now, tonumber(number))), 1, 0
    call('ZREM', KEYS[3], key)
  end
  if not level and call('ZCARD', KEYS[5]) >= MAX_FORGIVEN then return end
  since = max(tonumber(since) or 0, tonumber(number))
  call('HSET', KEYS[4], key, format('%s %s %s %.0f', level or 0, till or 0, forgive or 1, since))
  call('ZADD', KEYS[5], format('%.0f', max(over, now + KEEP_CHANGE)), key)
  expire_bans({ KEYS[3], KEYS[4], KEYS[5] }, now)
end

local function set_rule(name, span, made, text)
  local times = format('%.0f %.0f ', now + tonumber(span), made)
  call('HSET', KEYS[1], name, times .. text)
  call('HDEL', KEYS[1], 'g' .. name)
  made_at[name], gone[name], gone_unknown[sub(name, 1, 1)][name] = made, nil, nil
end

local function remove_rule(name)
  call('HDEL', KEYS[1], name)
  made_at[name] = nil
end

-- A node that was away may tell the rule later.
local function remember_gone(name, at, is_unknown)
  local before, was_unknown = gone_at(name)
  if before >= at and (is_unknown or not was_unknown) then return end
  at = max(at, before)
  is_unknown = is_unknown and not gone[name]
  local list = is_unknown and gone_unknown[sub(name, 1, 1)] or gone
  gone_unknown[sub(name, 1, 1)][name] = nil
  list[name] = at
  call('HSET', KEYS[1], 'g' .. name, format(is_unknown and '%.0f -' or '%.0f', at))
end

-- Of too many, those are forgotten that were removed first.
local function bound_gone(list, bound)
  local names = {}
  for name in pairs(list) do names[#names + 1] = name end
  if #names <= bound then return end
  table.sort(names, function(a, b)
    if list[a] ~= list[b] then return list[a] > list[b] end
    return a < b
  end)
  for n = bound + 1, #names do call('HDEL', KEYS[1], 'g' .. names[n]) end
end

if not is_merge and not is_known() then return { 'lost' } end
if first then
  local rules, ended = all()
  local count, bound, n = #rules, MAX_MERGED, 7
  local has_ruled = #ended > 0
  while n <= #ARGV do
    local word, name = ARGV[n], ARGV[n + 1]
    if (word == 'put' or word == 'keep') and not made_at[name] then
      count = count + 1
      if word == 'put' then bound = MAX_RULES end
    end
    has_ruled = has_ruled or RULINGS[word]
    if word == 'drop' then
      -- An unban has all nodes lift the ban of its key, so one that has the rule asks for all. The end of an override has not.
      local is_unban = ARGV[n + 2] ~= 'known' and match(name, '^b')
      has_ruled = has_ruled or made_at[name] or not is_unban
    end
    n = n + (LENGTHS[word] or 2)
  end
  if count > bound then return { 'full' } end
  for _, field in ipairs(ended) do call('HDEL', KEYS[1], field) end
  version = max(version + 1, is_possible and known + 1 or 0, time.told + 1, now)
  mark = ARGV[3]
  -- What is later was written by no node, or by one that was told a wrong time.
  call('ZREMRANGEBYSCORE', KEYS[2], format('(%.0f', version), '+inf')
  call('HSET', KEYS[1], 'version', format('%.0f', version), 'mark', mark)
  -- The rules of another history may be others, whatever the node knows.
  if has_ruled or is_merge then call('HSET', KEYS[1], 'ruled', format('%.0f', version)) end
  call('ZADD', KEYS[2], format('%.0f', version), format('%.0f at %s', version, mark))
  n = 7
  while n <= #ARGV do
    local word, name = ARGV[n], ARGV[n + 1]
    if word == 'put' then
      -- Later than what it replaces, also if the clock of a store was ahead that another one followed.
      local made = max(version, (made_at[name] or 0) + 1, gone_at(name) + 1)
      set_rule(name, ARGV[n + 2], made, ARGV[n + 3])
    elseif word == 'keep' then
      local made, gone_then = possible(ARGV[n + 3]), gone_at(name)
      if gone_then > made then
        remember_gone(name, gone_then)
      elseif (made_at[name] or -1) < made then
        set_rule(name, ARGV[n + 2], made, ARGV[n + 4])
      end
    elseif word == 'drop' then
      local made = made_at[name]
      remove_rule(name)
      remember_gone(name, max(version, (made or 0) + 1), not made and ARGV[n + 2] ~= 'known')
    elseif word == 'gone' then
      local at = possible(ARGV[n + 2])
      if (made_at[name] or now) < at then remove_rule(name) end
      remember_gone(name, at)
    elseif word == 'reset' or word == 'lift' then
      record(format('%.0f', version), word, name)
    elseif word == 'again' then
      -- A change of no possible time is made once more.
      record(format('%.0f', min(tonumber(name), version)), ARGV[n + 2], ARGV[n + 3])
    end
    n = n + (LENGTHS[word] or 2)
  end
  bound_gone(gone, MAX_GONE)
  bound_gone(gone_unknown.b, MAX_GONE_UNKNOWN)
  bound_gone(gone_unknown.o, MAX_GONE_UNKNOWN)
  call('ZREMRANGEBYRANK', KEYS[2], 0, -MAX_EVENTS - 1)
  call('PEXPIRE', KEYS[1], KEEP)
  call('PEXPIRE', KEYS[2], KEEP)
end

local reply = { format('%.0f', version), mark, format('%.0f', now) }
local is_new = version ~= known or mark ~= known_mark
-- While there are fields besides `version`, `mark` and `ruled`.
if first or call('HLEN', KEYS[1]) > 3 then keep_time(KEYS[6], time) end
-- Where it is not known when rules changed, they may have.
local ruled = tonumber(match(call('HGET', KEYS[1], 'ruled') or '', '^%d+$') or version)
if ARGV[4] == 'all' or is_new and (known < ruled or known > version or ruled > version) then
  reply[#reply + 1] = 'rules'
  local rules = all()
  for _, rule in ipairs(rules) do
    local times = { left = format('%.0f', rule.left), made = format('%.0f', rule.made) }
    for _, value in ipairs({ 'rule', rule.field, times.left, times.made, rule.text }) do
      reply[#reply + 1] = value
    end
  end
end
if not is_new and done == known then return reply end
if done < oldest_kept() then
  reply[#reply + 1] = 'missed'
  reply[#reply + 1] = format('%.0f', oldest_kept())
end
-- A node that knows nothing is told everything: nodes that have ended may have published what they counted before.
local events =
  call('ZRANGEBYSCORE', KEYS[2], format('(%.0f', done), format('%.0f', version), 'WITHSCORES')
for n = 1, #events, 2 do
  local number, word, key = match(events[n], '^(%d+) (%a+) (%x+)$')
  if word == 'reset' or word == 'lift' then
    local at = format('%.0f', tonumber(events[n + 1]))
    for _, value in ipairs({ 'do', at, number, word, key }) do reply[#reply + 1] = value end
  end
end
return reply
