-- Keeps the rules that operators make for keys, and tells nodes what has changed.
--
-- KEYS[1]        a hash: the field `version`, a number that grows with each change, and for each rule a field, whose
--                value is the time at which the rule ends, a blank, and a text of the nodes
-- KEYS[2]        a sorted set: what nodes have to do once, `version word key`, by version
-- KEYS[3..5]     the bans (bans.lua)
-- ARGV[1]        the version that the node knows; 0: none
-- ARGV           then changes:
--                  put field span text    adds a rule that lasts for `span`, or replaces it
--                  keep field span text   adds it unless it is there
--                  drop field             removes it
--                  reset key              all nodes forget what the key has spent
--                  lift key               all nodes and this store forget the ban of the key
-- returns        the version; then, if the node knows another one: for each rule `rule`, its field, the rest of its
--                span, its text, and for each thing to do since then `do`, word, key
--
-- Times are in microseconds since the epoch, spans in microseconds. With more than 1,000 rules nothing changes, and the
-- reply is the word `full`. If the node knows a later version than the store, the store has lost data: nothing changes, and
-- the reply is the word `lost`, except to `keep`, by which a node tells the store its rules again.
--
-- Example: `7 drop o4711` on a store of version 7 removes one rule; the reply is `8`, then all rules that are left.

local call, ARGV, KEYS = redis.call, ARGV, KEYS
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local format, match, max = string.format, string.match, math.max
local MAX_RULES = 1000
local MAX_EVENTS = 1000 -- a node that was away for more has forgotten what the keys spent anyway
local KEEP = 31 * 86400 * 1000 -- milliseconds: longer than any rule lasts

local known = tonumber(ARGV[1]) or 0
local version = tonumber(call('HGET', KEYS[1], 'version') or '0') or 0

local function all()
  local rules, fields = {}, call('HGETALL', KEYS[1])
  for n = 1, #fields, 2 do
    local till, text = match(fields[n + 1], '^(%d+) (.*)$')
    if fields[n] ~= 'version' and till then
      if tonumber(till) > now then
        rules[#rules + 1] = { field = fields[n], left = tonumber(till) - now, text = text }
      elseif #ARGV > 1 then
        call('HDEL', KEYS[1], fields[n])
      end
    end
  end
  return rules
end

if version < known and ARGV[2] ~= 'keep' then return { 'lost' } end
if #ARGV > 1 then
  local rules = all()
  local has, count = {}, #rules
  for _, rule in ipairs(rules) do has[rule.field] = true end
  local n = 2
  while n <= #ARGV do
    local word = ARGV[n]
    if word == 'put' or word == 'keep' then
      if not has[ARGV[n + 1]] then
        has[ARGV[n + 1]] = true
        count = count + 1
      end
      n = n + 4
    else
      n = n + 2
    end
  end
  if count > MAX_RULES then return { 'full' } end
  version = max(version, known) + 1
  call('HSET', KEYS[1], 'version', format('%.0f', version))
  n = 2
  while n <= #ARGV do
    local word, name = ARGV[n], ARGV[n + 1]
    if word == 'put' or word == 'keep' then
      local value = format('%.0f ', now + tonumber(ARGV[n + 2])) .. ARGV[n + 3]
      call(word == 'put' and 'HSET' or 'HSETNX', KEYS[1], name, value)
      n = n + 4
    else
      if word == 'drop' then
        call('HDEL', KEYS[1], name)
      else
        call('ZADD', KEYS[2], format('%.0f', version), format('%.0f %s %s', version, word, name))
      end
      if word == 'lift' then
        call('ZREM', KEYS[3], name)
        call('HDEL', KEYS[4], name)
        call('ZREM', KEYS[5], name)
      end
      n = n + 2
    end
  end
  call('ZREMRANGEBYRANK', KEYS[2], 0, -MAX_EVENTS - 1)
  call('PEXPIRE', KEYS[1], KEEP)
  call('PEXPIRE', KEYS[2], KEEP)
end

local reply = { format('%.0f', version) }
if version == known then return reply end
for _, rule in ipairs(all()) do
  for _, value in ipairs({ 'rule', rule.field, format('%.0f', rule.left), rule.text }) do
    reply[#reply + 1] = value
  end
end
if known > 0 then
  for _, event in ipairs(call('ZRANGEBYSCORE', KEYS[2], format('(%.0f', known), '+inf')) do
    local word, key = match(event, '^%d+ (%a+) (%x+)$')
    if word then
      for _, value in ipairs({ 'do', word, key }) do reply[#reply + 1] = value end
    end
  end
end
return reply
