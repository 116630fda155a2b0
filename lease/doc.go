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
// A failed call may have taken effect, or may still do so, unless [Definite] says otherwise.
//
// The guarantees rest on the promises S1 to S5 of the [Store]. On an engine that loses
// acknowledged writes, or whose clock drifts more than [Timing] allows, two processes can pass
// tenure.Term.Check at once. Then only the sinks protect.
//
// # Sessions and records
//
// A session is the engine's evidence that one process lives. It is opened with a TTL, extended
// by keep-alives, and ends for good by expiry or by closing. A record is what the store keeps
// about one group: a version, a token, the session that holds it, and the last terms. It is
// never deleted. A group is led if and only if its record names a living session. So a process
// keeps one session alive for all of its groups, and its death vacates all of them at once.
// Because death is final, a grant needs no transaction over both: one compare-and-set of the
// record is enough, and a late one fails because the version has changed.
//
// A [Store] keeps sessions and records. Package store/kv implements it over a narrow driver,
// and store/storetest tests any implementation.
//
// Programs that read views directly from a Store (a service, a dashboard) keep a [Cursor] for
// each group: [Since] lists what happened after it. [Elector.Leaders] does that for one group.
//
// # Machine and shell
//
// [Machine] makes every decision: when to open a session, send a keep-alive, or try for a
// vacant group; on which record a term begins and when it ends; when and to whom a grant is
// released; what a lost answer may have meant. It is pure: events and the time go in, actions
// come out. M1 to M5 on its type are its invariants, and the files in testdata show it at work.
//
// [Node] is the shell and decides nothing. It reads the clock, calls the store (each call in a
// goroutine with a deadline), runs the watch and the health check, ends contexts, and passes
// events to the machine. Its loop waits for no call, so a store that hangs does not delay the
// end of a term. Package sim has another shell and runs the same machine through bad networks
// and clocks.
//
// tenure.Term.Check does not depend on the shell: it compares the clock with the trust that the
// machine last granted, in the caller's goroutine, so it is right even if the loop did not run.
package lease
