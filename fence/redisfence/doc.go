// Package redisfence fences what a leader writes to Redis.
//
//	f, err := redisfence.New(client, "{invoices}:mark")
//	…
//	err = f.Set(ctx, stamp, "{invoices}:latest", "2026-11", 0)
//	total, err := f.Do(ctx, stamp, add, []string{"{invoices}:total"}, 100)
//
// where add is a script of your own, made once:
//
//	add := redisfence.NewScript(`return redis.call('INCRBY', KEYS[1], ARGV[1])`)
//
// # Limitations
//
// Redis has no consensus. The mark is as durable as any other key. Acknowledged writes can be
// lost when a replica is promoted, or when the server stops without "appendfsync always". The
// mark then goes back, and a stale leader is accepted until the current leader writes or seals
// again. WAIT makes that rarer and does not rule it out. Eviction can remove the mark:
// maxmemory-policy must not be one of allkeys-*. FLUSHALL, DEL and a restored backup remove it
// too. Use sqlfence or the ledger for data that must never go back.
//
// Only writes through this package are checked, and only keys on the same server. Redis does
// not roll a script back: if it fails half way, what it has written stays. Clients repeat a
// command whose answer was lost (go-redis does, unless MaxRetries is -1), so a write may be
// made twice with its stamp. Strict writes are made once.
//
// # How it works
//
// The check and the write are one Lua script, and Redis runs one script at a time. The mark
// is a hash with the fields deployment, group, token, seq, digest, session and answer. It is
// raised before your script runs.
//
// Redis Cluster runs a script only if all of its keys are in one slot: give the mark and
// every key the same hash tag, as above. A [Fence] whose mark has a hash tag refuses keys with
// another one, also on a single server, so that the mistake shows before a move to a cluster.
package redisfence
