// Package lease elects leaders on any engine that can expire a session and compare-and-set
// a record.
//
// Most programs need one call:
//
//	err := lease.Lead(ctx, store, "billing", "node-1", work)
//
// A process with many groups, another timing or a health check makes one [Node] and an
// [Elector] for each group:
//
//	node, err := lease.New(engine, lease.Config{
//		Candidate: tenure.Candidate{ID: "node-1", Address: "10.0.0.1:7000"},
//		Scope:     []string{"shard-*"},
//		Timing:    lease.LAN(),
//		Health:    disk.Check, // an unhealthy process hands over
//	})
//	if err != nil {
//		return err // says which field breaks which rule
//	}
//	defer node.Close(context.WithoutCancel(ctx))
//	var all sync.WaitGroup
//	for _, shard := range shards {
//		elector, err := node.Elector(shard)
//		if err != nil {
//			return err
//		}
//		all.Go(func() { tenure.Lead(ctx, elector, serve) })
//	}
//	all.Wait()
//
// Ten thousand groups need as many keep-alives as one. Close waits for the work of all of them
// and then frees them with one call.
//
// # Limitations
//
// A change of leader takes time. After a crash the group is vacant for about a TTL. Work that
// does not return keeps its group for as long as its process lives. [Timing.Explain] computes
// the numbers for a configuration.
//
// The first in line does not always win. Priority and age decide who tries first, from what
// each candidate knows about the others. The engine decides who is granted.
//
// A failed call may have taken effect, or may still do so, unless store.Definite says otherwise.
//
// The guarantees rest on the promises S1 to S5 of the [store.Store]. On an engine that loses
// acknowledged writes, or whose clock drifts more than [Timing] allows, two processes can pass
// tenure.Term.Check at once. Then only the sinks protect.
//
// # Design
//
// A pure state machine (internal/machine) makes every decision: events and the time go in,
// actions come out. [Node] drives it and decides nothing. It reads the clock, calls the store
// (each call in a goroutine with a deadline), runs the watch and the health check, ends
// contexts, and passes events to the machine. Its loop waits for no call, so a store that hangs
// does not delay the end of a term. Package sim runs the same machine through bad networks and
// clocks.
//
// tenure.Term.Check does not depend on the node: it compares the clock with the trust that the
// machine last granted, in the caller's goroutine, so it is right even if the loop did not run.
package lease
