// Package electortest tests a tenure.Elector, in real time. An [Engine] starts processes and
// crashes, pauses and partitions them; [Run] runs all cases:
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
// If the machine was stalled for a fifth of the lease, a failure proves nothing, and the case
// runs again. If the machine stalls every time, the case fails.
//
// Two concurrent campaigns of one elector are not tested: each engine documents their effect.
package electortest
