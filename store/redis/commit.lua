-- One step: compares, writes and reads items.
--
-- KEYS: the items, their keys in order, the state. ARGV: the channel, 1 if the commit counts as a
-- change, and then four lists, each after its length: conditions (key, version), writes (key,
-- kind, value), reads, and reads if a condition failed.
--
-- An item is "version created value". The state has the version of the last commit, the index
-- (the number of commits that count), the life of the data, and the index at which it began.
-- Numbers are decimal texts: Lua would lose digits when it prints them.
local items, order, state = KEYS[1], KEYS[2], KEYS[3]
local at = 2
local function take()
	at = at + 1
	return ARGV[at]
end
local function list(width)
	local rows = {}
	for i = 1, tonumber(take()) do
		rows[i] = {}
		for j = 1, width do
			rows[i][j] = take()
		end
	end
	return rows
end
local conditions, writes, reads, otherwise = list(2), list(3), list(1), list(1)

-- A life of the data is that of one process: another may have received less of it.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local known = redis.call('HMGET', state, 'index', 'life', 'began')
local index, life, began = known[1] or '1', known[2], known[3] -- never 0, which is unknown
-- If a key has another type this fails here, before anything is written.
redis.call('ZCARD', order)
redis.call('HLEN', items)
if life ~= run then
	life, began = run, index
	redis.call('HSET', state, 'index', index, 'life', life, 'began', began)
	-- Versions begin with the time in microseconds: above those that a lost state had counted.
	local now = redis.call('TIME')
	redis.call('HSETNX', state, 'version', string.format('%.0f', now[1] * 1000000 + now[2]))
end

local ok = 1
for _, c in ipairs(conditions) do
	local item = redis.call('HGET', items, c[1])
	local version = item and string.match(item, '^%d+') or '0'
	if version ~= c[2] and not (c[2] == 'any' and item) then
		ok = 0
	end
end

if ok == 1 and #writes > 0 then
	-- The first write. Without memory it fails, and a delete does not.
	local version = string.format('%.0f', redis.call('HINCRBY', state, 'version', 1))
	if ARGV[2] == '1' then
		index = string.format('%.0f', redis.call('HINCRBY', state, 'index', 1))
	end
	for _, w in ipairs(writes) do
		local key, kind = w[1], w[2]
		local old = redis.call('HGET', items, key)
		if kind == 'delete' then
			redis.call('HDEL', items, key)
			redis.call('ZREM', order, key)
		else
			local created = old and string.match(old, '^%d+ (%d+)') or version
			redis.call('HSET', items, key, version .. ' ' .. created .. ' ' .. w[3])
			redis.call('ZADD', order, 0, key)
		end
	end
	local changed = {}
	for _, w in ipairs(writes) do
		if w[2] ~= 'quiet' then
			changed[#changed + 1] = w[1]
		end
	end
	if #changed > 0 then
		redis.call('PUBLISH', ARGV[1], table.concat(changed, '\n'))
	end
end

local answer = {ok, redis.call('HGET', state, 'version'), index, life, began}
for _, r in ipairs(reads) do
	answer[#answer + 1] = redis.call('HGET', items, r[1])
end
if ok == 0 then
	for _, r in ipairs(otherwise) do
		answer[#answer + 1] = redis.call('HGET', items, r[1])
	end
end
return answer
