// Package enginetest runs real engines for tests: etcd members as processes of
// their own, which can be paused, killed, restarted and set back to an earlier
// day, and a proxy that loses what is sent through it.
//
//	e := enginetest.Cluster(t, 3, enginetest.FastTicks())
//	client := connect(e.Endpoints())
//	e.Members[0].Kill()
//
// The members run the program server/cmd/engine of this repository, which is built on
// first use. The package itself needs only the standard library, so that the tests
// of a module may use it without requiring the module that contains etcd. Where
// the program cannot be built a test is skipped, and fails if CI is set.
//
// Every fault is made certain before a method returns: a paused member has
// stopped, a killed one is gone, one that was started serves. Nothing outlives the
// test, even if the test is killed.
package enginetest
