// Package enginetest runs real engines for tests: etcd members as separate processes, which
// can be paused, killed, restarted and restored from a backup, and a proxy that can cut and
// delay connections.
//
//	e := enginetest.Cluster(t, 3, enginetest.FastTicks())
//	client := connect(e.Endpoints())
//	e.Members[0].Kill()
//
// The members run the program server/cmd/engine of this repository, which is built on
// first use. The package itself needs only the standard library, so that the tests
// of a module may use it without requiring the module that contains etcd. If the program
// cannot be built the test is skipped; it fails if CI is set.
//
// A method returns when its effect is certain: a paused member has stopped, a killed one is
// gone, a started one is ready. All processes end with the test, even if the test is killed.
package enginetest
