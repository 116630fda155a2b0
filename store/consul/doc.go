// Package consul keeps elections in Consul's key-value store. It needs Consul 1.14 or newer, and
// no client library.
//
//	s, err := consul.Open(ctx, consul.Config{Addresses: []string{"http://127.0.0.1:8500"}})
//
// # Limitations
//
// Consul keeps what a majority of its servers acknowledged. But after a restored snapshot, or if
// somebody deletes keys, acknowledged grants are lost. Then this package grants nothing and keeps
// no session alive until an operator raises the epoch (store.ErrRewound). It notices:
//
//   - a restored snapshot and lost data: clients that were running at the time. The first call of
//     such a client sees an older version of the key "last". If a client that was started after
//     the restore writes first, the others notice it by the records that they know;
//   - keys that were exported and imported, and a deleted "last" or "meta" key: every client.
//
// If all clients are restarted together with Consul, they cannot notice a restored snapshot,
// because everything that Consul stores is in the snapshot. So raise the epoch after every
// restore.
//
// The smallest TTL is 1 s. When Consul loses its leader, no call succeeds until it has elected
// another one: a few seconds with raft_multiplier = 1, and 10 s or more with Consul's default of
// 5. Use a longer TTL: otherwise leaders end their terms.
//
// # Sessions
//
// Sessions are keys, and candidates end the silent ones: see Observed in store.Caps. After a
// crash the next term begins after the TTL, plus 2 % for clock drift, plus up to an eighth of the
// TTL. This package does not use the TTL of Consul's own sessions: it is at least 10 s, a session
// may live twice as long, and a new leader of Consul starts the TTL again.
//
// Config.Checks ends sessions earlier, when a health check of Consul fails.
//
// # Rights
//
// The ACL token needs write on the keys below the prefix. With Config.Checks it also needs write
// on sessions of the agent's node, and for Publish on the service:
//
//	key_prefix "tenure/"   { policy = "write" }
//	session "NODE"         { policy = "write" }
//	service "billing"      { policy = "write" }
//
// # Cost
//
// A candidate sends a keep-alive every Beat, reads the leader's key eight times in a TTL, and has
// two blocking queries open, which return every 10 s. After each change of a group or session,
// every candidate lists the groups or the sessions. With 10,000 groups this is several MB, so
// use store/etcd for many groups.
//
// # Layout
//
// The keys are those of package kv, below the prefix ("tenure" unless configured), and "last",
// which every commit writes. The values are JSON. A key's version is its ModifyIndex.
package consul
