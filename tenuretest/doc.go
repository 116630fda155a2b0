// Package tenuretest tests services that lead: elections, pauses, partitions and crashes, in
// virtual time and in one line each.
//
// Nothing is mocked. A [Node] is the real lease.Node on the real store in memory. Simulated are
// only time, by testing/synctest, and the connection to the store. [Run] gives a test a [Kit];
// Kit.Node starts a process; Pause, Partition, Expire and Crash inject faults. This is a complete
// test: a leader is paused between its check and its write, another leads, and the late write is
// refused.
//
//	func TestZombie(t *testing.T) {
//		tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
//			a, b := k.Node("a"), k.Node("b")
//			var sink tenuretest.Sink
//			old, err := a.Elector("billing").Campaign(t.Context())
//			if err != nil || old.Check() != nil {
//				t.Fatal("a does not lead")
//			}
//			a.Pause() // after its check, before its write
//			next, err := b.Elector("billing").Campaign(t.Context())
//			if err != nil || next.Seal(t.Context(), &sink) != nil {
//				t.Fatal("b does not lead")
//			}
//			err = sink.Write(t.Context(), old.Stamp(), "a wakes up and writes")
//			if !errors.Is(err, fence.ErrRefused) {
//				t.Fatalf("the stale write was not refused: %v", err)
//			}
//		})
//	}
//
// Campaign waits there for eight virtual seconds, until the session of a has expired. The test
// takes a few milliseconds.
//
// A service that is called back by tenure.Lead is started in a goroutine with the context of t,
// and stops with it:
//
//	go tenure.Lead(t.Context(), a.Elector("billing"), service.Work, tenure.WithLog(k.Log()))
//	k.Settle()                    // a leads now
//	a.Crash()                     // without releasing anything
//	k.Advance(10 * time.Second)   // its session expires, another leads
//
// # Limitations
//
// It does not test the engine that you use in production: store/storetest and electortest do. It
// does not show the cost of computing, which takes no virtual time. A pause freezes the node, not
// the goroutines of the test: they act as the work that continues. The rules of testing/synctest
// apply: no network, no processes, no t.Run and no t.Parallel inside.
package tenuretest
