// Package electortest is the contract of a tenure.Elector as tests. An engine
// says how to start a process, and how to crash, pause and cut it off; [Run] does
// the rest, on real time:
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
// A failure on a machine that stood still for a good part of the lease proves
// nothing, so such a case is run again; if the machine never holds still, the
// case fails, because it could not tell.
//
// What one elector does with two campaigns at a time is for each engine to say,
// and is not tested here.
package electortest
