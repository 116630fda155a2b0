// Package electortest tests a tenure.Elector. An engine says how to start a process and how to
// crash, pause and cut it off; [Run] does the rest in real time:
//
//	func TestElector(t *testing.T) {
//		electortest.Run(t, electortest.Engine{
//			Start:    func(t *testing.T, group, id string) electortest.Process { … },
//			Lease:    4 * time.Second,
//			Failover: 6 * time.Second,
//			Transfer: true,
//		})
//	}
//
// # Limitations
//
// If the machine was paused for a large part of the lease, a failure proves nothing, and the
// case is run again. If the machine is paused every time, the case fails.
//
// What one elector does with two campaigns at a time is not tested: each engine documents it.
package electortest
