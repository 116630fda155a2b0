// Package store defines what an election needs from an engine: the [Store] contract.
//
// Engine authors implement it, usually as a driver below package store/kv, and prove it
// with package store/storetest. Services and dashboards read from it. A process that
// only wants to lead uses package lease and any store.
//
// # Limitations
//
// Everything that package lease guarantees rests on the promises S1 to S5 of a [Store].
// On an engine that loses what it has acknowledged, or whose clock drifts more than the
// timing allows, two processes can believe that they lead, and only fenced sinks are safe.
//
// A call that failed may still have taken effect, now or later, unless [Definite] reports
// that it did not.
//
// # Sessions and records
//
// A session is the store's evidence that one process is alive. It is opened with a TTL,
// kept alive, and dead for good once it has expired or was closed. A record is the memory
// of one group: a version, a token, the session that holds the group, and the last few
// terms. A record is never deleted, except by a [Retirer], which keeps a token floor. A group is led if and only if its record names a
// living session.
//
// So one session serves all groups of a process, and its death vacates them all. Because
// death is final, a grant needs no transaction over session and record: one
// compare-and-set of the record is enough, and a late one fails on the version.
//
// # Reading
//
// A [View] is a record with the state of its group. Keep a [Cursor] for each group:
// [Since] turns a view into the changes after the cursor.
package store
