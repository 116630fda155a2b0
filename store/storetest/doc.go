// Package storetest tests a store.Store. An engine that passes keeps the promises S1 to S5:
//
//	func TestStore(t *testing.T) {
//		server := startServer(t)
//		storetest.Run(t, storetest.Engine{
//			Open:    func(t *testing.T) store.Store { return connect(t, server) },
//			TTL:     2 * time.Second,        // the shortest that works reliably
//			Settle:  time.Second,            // how late an expiry may show
//			Restart: server.Restart,         // leave out what the engine cannot do
//			Broken:  []storetest.Promise{},  // what it cannot promise
//		})
//	}
//
// # Limitations
//
// A check that needs something which the engine cannot do (a restart, a backup) is skipped with
// a message, and has not passed. An engine that cannot keep a promise names it in Broken, and
// the suite must see it broken: a promise that is named and kept fails the run too.
//
// The suite does not measure how long calls take. It counts only what it saw before the
// earliest or after the latest promised moment, so that a busy machine does not fail a correct
// engine.
//
// Group names differ in each run, so a server can be used again; its records stay.
package storetest
