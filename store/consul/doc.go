// Package consul keeps elections in Consul's key-value store. It needs Consul 1.14 or newer, and
// no client library.
//
//	s, err := consul.Open(ctx, consul.Config{Addresses: []string{"http://127.0.0.1:8500"}})
//
// # Limitations
//
// Consul keeps what a majority of its servers acknowledged. Consul that was restored from a
// snapshot, or in which somebody deleted keys, has lost acknowledged grants. Then this package
// grants nothing and keeps no session alive until an operator raises the epoch
// (store.ErrRewound). It notices:
//
//   - a restored snapshot and lost data: clients that run meanwhile. The first call of such a
//     client sees the key "last" with an older version. If a client that was started after the
//     restore writes first, the others notice it by the records that they know;
//   - keys that were exported and imported, and a deleted "last" or "meta" key: every client.
//
// A fleet that was restarted together with Consul cannot notice a restored snapshot: all that
// Consul keeps is in the snapshot. So raise the epoch after every restore.
//
// The smallest TTL is 1 s. When Consul loses its leader it elects another one, and no call
// succeeds until then: a few seconds with raft_multiplier = 1, and 10 s or more with Consul's
// default of 5. Use a TTL that is longer, or leaders end their terms.
//
// # Sessions
//
// Sessions are keys, and candidates end the silent ones: see Observed in store.Caps. After
// a crash the next leader begins after the TTL, 2 % for clocks, and an eighth of the TTL at
// most. This package does not use the TTL of Consul's own sessions: it is 10 s at least, they
// expire up to twice as late as that says, and a new leader of Consul begins to count again.
//
// Config.Checks ends sessions earlier, when a health check of Consul fails.
//
// # Rights
//
// The ACL token needs write on the keys below the prefix, with Config.Checks also on sessions of
// the agent's node, and for Publish on the service:
//
//	key_prefix "tenure/"   { policy = "write" }
//	session "NODE"         { policy = "write" }
//	service "billing"      { policy = "write" }
//
// # Cost
//
// A candidate sends a keep-alive as often as its timing says, reads the leader's key eight
// times in a TTL, and has two blocking queries open, which return every 10 s. Each change of a
// group or session makes every candidate list the groups or the sessions. With 10,000 groups
// that is several MB, so an etcd serves many groups better.
//
// # Layout
//
// The keys are those of package kv, below the prefix ("tenure" unless configured), as JSON that
// "consul kv get" can read, and "last", which every commit writes. A key's version is its
// ModifyIndex.
package consul
