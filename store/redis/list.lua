-- Reads a page of items in the order of their keys. KEYS as for a commit. ARGV: the bounds of the
-- keys, as for ZRANGEBYLEX, and the limit. Answers key, item, key, item, ...
local answer, gone
repeat
	answer, gone = {}, false
	for _, key in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
		local item = redis.call('HGET', KEYS[1], key)
		if item then
			answer[#answer + 1] = key
			answer[#answer + 1] = item
		else -- deleted by hand
			gone = true
			redis.call('ZREM', KEYS[2], key)
		end
	end
until not gone
return answer
