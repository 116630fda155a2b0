// Package storetest is the contract of lease.Store as tests. An engine is one
// when it passes them:
//
//	func TestStore(t *testing.T) {
//		server := startServer(t)
//		storetest.Run(t, storetest.Engine{
//			Open:    func(t *testing.T) lease.Store { return connect(t, server) },
//			TTL:     2 * time.Second,        // the shortest that is comfortable
//			Settle:  time.Second,            // how late an expiry may show
//			Restart: server.Restart,         // leave out what it cannot
//			Broken:  []storetest.Promise{},  // what it cannot promise
//		})
//	}
//
// An engine that cannot keep a promise names it, and the suite must see it
// broken: a promise that is named and kept fails the run as well. A check that
// needs a lever which the engine does not have is skipped, and says so.
//
// Groups are named anew in each run, so a server may be used again and again;
// its records stay, as records do. Nothing is measured by how long a call takes
// here: only what was seen before the earliest or after the latest moment that
// is promised counts, so that a busy machine does not fail a good engine.
package storetest
