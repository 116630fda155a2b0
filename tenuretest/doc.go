// Package tenuretest tests services that lead: elections, and everything that
// goes wrong with them, in virtual time and in one line each.
//
// It is no mock. A [Node] is the real lease.Node on the real store in memory;
// what is simulated is the world: time, by testing/synctest, and the road to the
// store. [Run] gives a test a [Kit]; Kit.Node starts a process; Pause, Partition,
// Expire and Crash do to it what production does. This is a complete test: it
// shows that a leader which was paused between its check and its write, and woke
// up when another led, cannot do harm.
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
//			err = sink.Write(t.Context(), old.Stamp(0), "a wakes up and writes")
//			if !errors.Is(err, fence.ErrRefused) {
//				t.Fatalf("the stale write was not refused: %v", err)
//			}
//		})
//	}
//
// Campaign waits for eight seconds there, until the session of a has expired;
// the test takes a few milliseconds.
//
// A service that is called back by tenure.Lead is started in a goroutine with
// the context of t, and stops with it:
//
//	go tenure.Lead(t.Context(), a.Elector("billing"), service.Work, tenure.WithLog(k.Log()))
//	k.Settle()                    // a leads now
//	a.Crash()                     // without a word
//	k.Advance(10 * time.Second)   // its session expires, another leads
//
// What is not tested by this: the engine in production, for which there are
// lease/storetest and electortest, and goroutines that compute, because they
// take no virtual time. A pause freezes the node, not the goroutines of the
// test: they are the part that runs on.
package tenuretest
