// Package kv is the store: a lease.Store over a narrow Driver, which is all that an engine
// needs. Users open an engine (store/etcd, store/mem); this package is for those who write
// a driver. Package kvtest has the contract of a driver as tests.
//
// # Limitations
//
// Where a transaction has one key only (Caps.Keys is 1), a call has several steps. A process
// that dies between them can leave a grant in the epoch before the last raise, which was
// made while the epoch was raised.
//
// Where the engine does not expire sessions by itself (Caps.Native is not set), a session
// that nobody observes lives on: see lease.Caps.
//
// Data that was lost is noticed by clients that remember it, and by every client if the
// description of the deployment or a single record is gone: see lease.Meta. A fleet that was
// restarted after everything was deleted or rolled back cannot notice it: raise the epoch
// after every restore.
package kv
