// Package mem is a store in the memory of one process, for tests, examples and the simulator.
//
//	store := mem.New(mem.Options{})
//	defer store.Close()
//	err := lease.Lead(ctx, store, "billing", "node-1", work)
//
// # Limitations
//
// It keeps every promise of store.Store while its process lives. Records, tokens and epochs end
// with the process, so do not fence a resource that outlives it. There is one copy and no
// quorum, and other processes cannot use it.
//
// Values that the store returns share memory with it: do not change the terms of a record, the
// metadata of a candidate, or the scope and attributes of a session.
//
// # Layers
//
// [Engine] is a key-value engine as a value. Every method takes the time; none reads a clock,
// takes a lock, starts a goroutine or draws a random number, so the same calls give the same
// answers. The simulator uses it directly. [Driver] adds a lock, a clock and watches, and makes
// it a kv.Driver. [Store] is a kv.Store over a driver of its own.
package mem
