// Package redisfence fences what a leader writes to Redis.
//
// Redis has no consensus, and that is the limit of this fence: the mark is as
// durable as every other key. A write that was acknowledged can be lost when a
// replica is promoted, and when the server ends without "appendfsync always"; the
// mark goes back with it, and until the next leader has written or sealed again a
// stale one is let in. WAIT makes that rarer and does not rule it out. Eviction
// takes the mark like any key: maxmemory-policy must not be one of allkeys-*. So
// do FLUSHALL, DEL and a restored backup. What must never go back belongs into
// sqlfence or the ledger.
//
// Nor is it a fence for whoever writes around it, or for keys on another server. A
// script of Redis is not rolled back: if it fails half way, what it has written
// stays. And a client repeats a command whose answer was lost (go-redis does,
// unless MaxRetries is -1), so a write may be made twice under its stamp; strict
// writes are made once.
//
//	f, err := redisfence.New(client, "{invoices}:mark")
//	…
//	err = f.Set(ctx, stamp, "{invoices}:latest", "2026-11", 0)
//	total, err := f.Do(ctx, stamp, add, []string{"{invoices}:total"}, 100)
//
// where add is a script of the user's own, made once:
//
//	add := redisfence.NewScript(`return redis.call('INCRBY', KEYS[1], ARGV[1])`)
//
// The check and the write are one Lua script, and Redis runs one script at a time,
// to its end. The mark is a hash with the fields deployment, group, token, seq,
// digest and answer. It is raised before the script of the user runs.
//
// Redis Cluster runs a script only where all of its keys live in one slot: give
// the mark and every key that is written the same hash tag, as above. A [Fence]
// whose mark has a hash tag refuses keys with another, also on a single server, so
// that the mistake is not found on the day of the move.
package redisfence
