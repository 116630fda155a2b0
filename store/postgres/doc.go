// Package postgres keeps elections in PostgreSQL 12 or newer. Most users have a database
// already, and a leader that writes to it can use one database for election, fence and data.
//
// # Limitations
//
//   - A commit is as durable as the server makes it. A failover to an asynchronous standby and a
//     restored backup lose the last commits. A client that has seen a lost commit notices it:
//     then nothing is granted until an operator raises the epoch (store.ErrRewound). A fleet that
//     was restarted at the same time notices nothing, so raise the epoch after every restore. A
//     synchronous standby (synchronous_standby_names) loses nothing.
//   - Candidates end silent sessions (see kv): a crashed leader is replaced TTL·1.02 after
//     another candidate read its last keep-alive, plus up to TTL/8. The clocks of servers are
//     not used. The smallest sound TTL is 1 s, or ten times a slow commit.
//   - A session costs one commit for each keep-alive and each process one connection for its
//     watch. Commits that change elections wait for each other, because NOTIFY does.
//
// # Rights
//
// Open creates the schema, which needs CREATE on the database. A role without it needs the
// rights in schema.sql (SQL), after the owner has applied that file. A schema of a newer
// version is refused (store.ErrNewer).
//
// # Poolers
//
// Behind a transaction pooler such as PgBouncer notifications do not arrive. A watch notices
// it and reads a counter four times a second instead. No prepared statements and no session
// settings are used.
//
// # Layout
//
// The schema "tenure_store" has a table items (key, value, version, created), a sequence for versions
// and a procedure commit. Every change is one call of it, in one round trip, so that no
// transaction waits for a client. The row with the empty key counts commits in the order in
// which they became durable, and names the life of the server: its timeline and start time.
// After a restart or promotion the count shows what was there when that life began.
package postgres
