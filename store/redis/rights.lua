-- Answers with the first command of the other scripts that the user may not run, if there is one.
-- Half a commit could be made without this. KEYS as for a commit. ARGV: the channel.
if not redis.acl_check_cmd then -- before Redis 7
	return {}
end
for _, command in ipairs({
	{'HGET', KEYS[1], 'f'}, {'HLEN', KEYS[1]}, {'HSET', KEYS[1], 'f', 'v'}, {'HDEL', KEYS[1], 'f'},
	{'ZADD', KEYS[2], '0', 'm'}, {'ZREM', KEYS[2], 'm'}, {'ZCARD', KEYS[2]}, {'ZRANGEBYLEX', KEYS[2], '-', '+'},
	{'HMGET', KEYS[3], 'f'}, {'HSET', KEYS[3], 'f', 'v'}, {'HINCRBY', KEYS[3], 'f', '1'},
	{'HSETNX', KEYS[3], 'f', 'v'}, {'TIME'},
	{'PUBLISH', ARGV[1], ''}, {'SUBSCRIBE', ARGV[1]},
}) do
	if not redis.acl_check_cmd(unpack(command)) then
		return {table.concat(command, ' ')}
	end
end
return {}
