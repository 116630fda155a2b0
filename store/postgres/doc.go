// Package postgres keeps elections in PostgreSQL 12 or newer. A leader that writes to PostgreSQL
// can use one database for election, fence and data.
//
// # Limitations
//
//   - A failover to an asynchronous standby and a restored backup lose the last commits. A client
//     that has seen a lost commit notices it: then nothing is granted until an operator raises the
//     epoch (store.ErrRewound). If all clients are restarted at the same time, they notice nothing,
//     so raise the epoch after every restore. A failover to a synchronous standby
//     (synchronous_standby_names) loses nothing.
//   - Candidates end silent sessions (see kv): a crashed leader is replaced TTL·1.02 after
//     another candidate read its last keep-alive, plus up to TTL/8. The clocks of servers are
//     not used. The smallest sound TTL is 1 s, or ten times a slow commit.
//   - Each keep-alive is a commit. Each process has one connection for its watch. Commits that
//     change elections run one after the other, because NOTIFY takes a lock.
//
// # Rights
//
// Open creates the schema, which needs CREATE on the database. For a role without this right,
// the owner must apply schema.sql (SQL) and grant the rights that it lists. Open refuses a schema
// of a newer version (store.ErrNewer).
//
// # Poolers
//
// Through a transaction pooler such as PgBouncer, notifications do not arrive. A watch notices
// this and reads a counter four times a second instead. The package uses no prepared statements
// and no session settings.
//
// # Layout
//
// The schema "tenure_store" has a table items (key, value, version, created), a sequence for versions
// and a procedure commit. Every change is one call of the procedure, in one round trip, so that no
// transaction waits for a client. The row with the empty key counts commits in the order in
// which they became durable, and names the incarnation of the server: its timeline and start
// time. After a restart or promotion it also has the count at which the incarnation began.
package postgres
