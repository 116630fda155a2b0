// Package kv implements store.Store over a narrow [Driver]. Users open an engine (store/etcd,
// store/mem); this package is for authors of drivers. Package kvtest tests a driver.
//
// A driver knows keys, values and versions, and nothing about elections: one atomic step on a
// few keys, a listing, a watch that gives hints, and a way to tell that data was lost. An engine
// that expires keys by itself also implements [Leaser]. Otherwise the processes observe each
// other's sessions and end the silent ones. [Open] makes a store of a driver, and [Follow] makes
// the watch of a driver whose connections come and go.
//
// # Limitations
//
// If a transaction has only one key (Caps.Keys is 1), a call has several steps. A grant is
// prepared in the record, checked, and then made. If its process dies in between, the next
// reader decides about it, so reading a group may write its record. Keys of ended sessions stay
// for ten minutes.
//
// If the engine does not expire sessions by itself (Caps.Native is false), a session that nobody
// observes stays alive: see store.Caps.
//
// Lost data is noticed by clients that remember it, and by every client if the description of
// the deployment or a single record is missing: see store.Meta. If all clients were restarted
// after everything was deleted or rolled back, nobody can notice it: raise the epoch after every
// restore.
package kv
