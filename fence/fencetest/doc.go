// Package fencetest is the contract of a sink as tests. A sink is one when it
// passes them:
//
//	var sink = fencetest.Sink{
//		Name:   "invoices",
//		Create: func(t testing.TB) string { … },                    // a fresh resource: where it is
//		Open:   func(where string) (fencetest.Resource, error) { … }, // connect to it
//	}
//
//	// Some checks kill a process in the middle of a write. It is the test binary
//	// itself, started once more.
//	func TestMain(m *testing.M) {
//		fencetest.Child(sink)
//		os.Exit(m.Run())
//	}
//
//	func TestSink(t *testing.T) { fencetest.Run(t, sink) }
//
// A lever that the sink does not have is left out (nil), and what needs it is
// skipped and says so. A sink that cannot keep a promise names it in Broken, and
// the suite must see it broken.
//
// A contract is worth what it catches. Each sink brings broken twins of itself,
// with the mistakes that are made by hand: the check apart from the write, the
// mark in memory, no slip rule. [Breaks] requires that a twin is caught:
//
//	func TestCheckApart(t *testing.T) {
//		fencetest.Breaks(t, checkApart, fencetest.NotOvertaken)
//	}
//
// Between is how an adapter lets the suite into the moment that matters: it calls
// it in Write and WriteStrict after the check and before the effect. Where there is
// no such moment, as in a script that runs inside the server, it is not called, and
// NoMoment says why: a forgotten call must not look like one that is not needed.
package fencetest
