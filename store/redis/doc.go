// Package redis keeps elections in Redis, on one server or behind sentinels.
//
// # Limitations
//
// Redis is not safe by itself. It replicates asynchronously, so a failover can lose acknowledged
// grants, and then two leaders can have the same token. A master that is cut off from the others
// still serves its clients. A single server loses acknowledged writes when it restarts, unless it
// runs with "appendonly yes" and "appendfsync always". Caps.Loses says so.
//
// Use Redis if you already run it, for work that may run twice for a moment (warming a cache,
// sending a digest) or that writes only to fenced sinks: a sink refuses a second session with the
// same token. The sink must not be in the same Redis, which could lose the mark with the grant.
// For everything else use another engine.
//
// Every process that has seen more than the new master has notices a loss, and so does a sink
// that has seen the token with another session. Then nothing is granted until an operator raises
// the epoch (store.ErrRewound); Meta says why. A failover that lost only keep-alives does not
// count as a loss. If all processes were restarted since, they cannot notice it: raise the epoch
// after every restore.
//
// Open refuses Redis Cluster, versions before 6, and a maxmemory-policy that evicts keys without
// a TTL. The tests run on Redis 7.0.
//
// # Timing
//
// The smallest TTL is 1 s. Candidates observe the leader's keep-alives and end its session after a
// TTL without one, on their own clocks: a dead leader is noticed 1.02 to 1.25 TTLs after its last
// keep-alive. A sentinel needs down-after-milliseconds and about two seconds to replace a master.
// With a longer TTL, leaders keep their terms through a failover.
//
// An idle candidate sends its keep-alives, reads the leader's beat eight times in a TTL, and its
// watch sends a PING after two quiet seconds.
//
// # Layout
//
// Three keys with one hash tag, and a channel:
//
//	{tenure}:items    hash: "version created value" of each item, as JSON; see: HGET {tenure}:items record/billing
//	{tenure}:order    sorted set: the keys of the items
//	{tenure}:state    hash: version, index, life (the incarnation: run_id of the server), began
//	{tenure}:changes  channel: keys that changed
//
// One script compares, writes and reads in one step. When another Redis process answers, it begins
// a new incarnation of the data, at its current index.
//
// # Rights
//
// A user needs the keys ~{tenure}:* and the channel &{tenure}:*, and the commands eval, evalsha,
// info, ping, publish, subscribe, unsubscribe, hget, hmget, hset, hsetnx, hdel, hlen, hincrby, zadd,
// zrem, zcard, zrangebylex and time.
package redis
