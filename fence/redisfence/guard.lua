-- Above stands the function write: the user's script. Below is the rule of
-- fence.Mark, for the stamp in ARGV and the mark in KEYS[1]. Numbers are doubles,
-- exact below 2^53, where tokens and seqs end; they are stored as they came, never
-- printed from a double.
local op, deployment, group, digest, session = ARGV[1], ARGV[2], ARGV[3], ARGV[6], ARGV[7]
local token, seq = tonumber(ARGV[4]), tonumber(ARGV[5])

local function number(text, least)
	if not text or #text > 16 or not string.find(text, '^%d+$') or string.find(text, '^0%d') then
		return nil
	end
	local n = tonumber(text)
	if n < least or n >= 2^53 then
		return nil
	end
	return n
end

local mark = redis.call('HMGET', KEYS[1], 'deployment', 'group', 'token', 'seq', 'digest', 'session')
local known = mark[6] or '' -- older versions stored none
local seen, last = number(mark[3], 1), number(mark[4], 0)
-- A mark that is there and cannot be read is no first contact: that would let
-- anybody in.
if not (seen and last and mark[1] and mark[2] and mark[5]) then
	if redis.call('EXISTS', KEYS[1]) == 1 then
		return {'damaged'}
	end
	seen = nil
end

local function slip()
	local epochs = math.floor(token / 2^40) - math.floor(seen / 2^40)
	return epochs > 1 or token % 2^40 - seen % 2^40 > 1000000
end

local function judge()
	if seen then
		if mark[1] ~= deployment or mark[2] ~= group then
			return 'foreign'
		elseif token < seen then
			return 'stale'
		elseif op ~= 'advance' and token == seen and session ~= '' and known ~= '' and session ~= known then
			return 'clone'
		elseif op ~= 'advance' and slip() then
			return 'slip'
		end
	end
	if op == 'strict' then
		if seq == 0 then
			return 'seq'
		elseif token == seen then
			if seq < last then
				return 'stale'
			elseif seq == last then
				return digest == mark[5] and 'retry' or 'clone'
			end
		end
	end
	return 'apply'
end

local verdict = judge()
if verdict == 'retry' then
	local stored = redis.call('HGET', KEYS[1], 'answer')
	return {verdict, stored and cmsgpack.unpack(stored)}
elseif verdict ~= 'apply' then
	return {verdict, mark[1], mark[2], mark[3], mark[4], mark[5], known}
end

if token ~= seen then
	redis.call('HSET', KEYS[1], 'deployment', deployment, 'group', group, 'token', ARGV[4], 'seq', '0', 'digest', '', 'session', session)
	redis.call('HDEL', KEYS[1], 'answer')
elseif op ~= 'advance' and known == '' and session ~= '' then
	redis.call('HSET', KEYS[1], 'session', session)
elseif op == 'strict' then
	-- Changes nothing, and fails now if the server has no memory left: not after
	-- the write is made.
	redis.call('HSET', KEYS[1], 'digest', mark[5])
end
if op == 'seal' or op == 'advance' then
	return {verdict}
end

local keys, args = {}, {}
for i = 2, #KEYS do
	keys[i - 1] = KEYS[i]
end
for i = 8, #ARGV do
	args[i - 7] = ARGV[i]
end
local answer = write(keys, args)
if type(answer) == 'table' and answer.err then
	return answer
end
if op == 'strict' then
	local packed = cmsgpack.pack(answer)
	redis.call('HSET', KEYS[1], 'seq', ARGV[5], 'digest', digest, 'answer', packed)
	-- What a retry will read, so that the first answer is the same.
	answer = cmsgpack.unpack(packed)
end
return {verdict, answer}
