// Package redis keeps elections in Redis, on one server or behind sentinels.
//
// # Limitations
//
// Redis is not safe by itself. It replicates asynchronously, so a failover can lose grants that
// it acknowledged, and then two leaders can have the same token. A cut-off master goes on serving
// until its clients leave it. A single server loses what it acknowledged when it restarts, unless
// it runs with "appendonly yes" and "appendfsync always". Caps.Loses says so.
//
// Use Redis if you have it anyway, for work that may run twice for a moment (warming a cache,
// sending a digest) or that writes only to fenced sinks: a sink refuses the second session that
// comes with a token. The sink must not be in the same Redis, which would lose the mark with the
// grant. For everything else use another engine.
//
// A loss is noticed by every process that has seen more than the new master knows, and by a sink
// that has seen the token with another session. Then nothing is granted until an operator raises
// the epoch (store.ErrRewound); Meta says why. A failover that lost only keep-alives is no loss.
// Processes that were all restarted since cannot notice it: raise the epoch after every restore.
//
// Redis Cluster and versions before 6 are refused, and so is a maxmemory-policy that evicts keys
// without a TTL. The tests run on Redis 7.0.
//
// # Timing
//
// The smallest TTL is 1 s. Candidates observe the leader's keep-alives and end its session after a
// TTL without one, on their own clocks: a dead leader is noticed 1.02 to 1.25 TTLs after its last
// keep-alive. A sentinel needs down-after-milliseconds and about two seconds to replace a master.
// Use a TTL above that, and leaders keep their terms through a failover.
//
// At rest, a candidate sends its keep-alives, a waiting candidate reads the leader's beat eight
// times in a TTL, and a watch sends a PING after two quiet seconds.
//
// # Layout
//
// Three keys with one hash tag, and a channel:
//
//	{tenure}:items    hash: "version created value" of each item, as JSON; see: HGET {tenure}:items record/billing
//	{tenure}:order    sorted set: the keys of the items
//	{tenure}:state    hash: version, index, life (run_id of the server), began
//	{tenure}:changes  channel: keys that changed
//
// One script compares, writes and reads in one step. Each Redis process that answers begins a new
// life of the data, at the index that it has then.
//
// # Rights
//
// A user needs the keys ~{tenure}:* and the channel &{tenure}:*, and the commands eval, evalsha,
// info, ping, publish, subscribe, unsubscribe, hget, hmget, hset, hsetnx, hdel, hlen, hincrby, zadd,
// zrem, zcard, zrangebylex and time.
package redis
