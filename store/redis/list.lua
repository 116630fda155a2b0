-- Reads a page of items in the order of their keys. KEYS as for a commit. ARGV: the bounds of the
-- keys, as for ZRANGEBYLEX, and the limit. Answers key, item, key, item, ...
local keys = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
local answer = {}
for _, key in ipairs(keys) do
	answer[#answer + 1] = key
	answer[#answer + 1] = redis.call('HGET', KEYS[1], key)
end
return answer
