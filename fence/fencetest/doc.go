// Package fencetest tests a sink. A sink that passes keeps the rule of package fence:
//
//	var sink = fencetest.Sink{
//		Name:   "invoices",
//		Create: func(t testing.TB) string { … },                      // a fresh resource: where it is
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
// # Limitations
//
// Leave out (nil) what the sink cannot do; checks that need it are skipped with a message,
// and a skipped check has not passed. A sink that cannot keep a promise names it in Broken,
// and the suite must see it broken.
//
// The suite can pause a write only where the adapter calls [Between]: in Write and
// WriteStrict, after the check and before the effect. Where there is no such moment, as in a
// script that runs inside the server, the adapter sets NoMoment to the reason instead.
//
// # Broken twins
//
// The tests of each sink include broken versions of it, with typical mistakes: the check
// separate from the write, the mark in memory, no slip rule. [Breaks] requires that the suite
// catches such a twin:
//
//	func TestCheckApart(t *testing.T) {
//		fencetest.Breaks(t, checkApart, fencetest.NotOvertaken)
//	}
package fencetest
