// Package lease elects leaders on any engine that can let a session expire and
// compare-and-set a record.
//
// # What is not guaranteed
//
// That a group changes hands soon. The crash of a leader costs about a TTL, and
// work that does not return keeps its group for as long as its process lives.
// [Timing.Explain] puts numbers to a configuration, before production does.
//
// That the first in line wins. Priority and age decide who tries first, from
// what each candidate last knew of the line; the engine decides who is granted.
//
// That a call which failed did nothing. Unless [Definite] says so, it may have
// taken effect, or may yet.
//
// That any engine will do. What this package promises rests on what a [Store]
// promises, S1 to S5. On an engine that forgets what it has acknowledged, or
// whose clock drifts more than [Timing] was told, two may lead at once, and only
// the sinks are left.
//
// # Sessions and records
//
// A session is the liveness of one process: opened with a TTL, kept alive, and
// dead for good once it has expired or was closed. A record is the memory of one
// group, and is never deleted: a version, a token, the session that holds it,
// and the last few terms. A group is led if and only if its record names a
// living session. So a process keeps one session alive for all of its groups,
// and its death, which is one event, vacates them all. Because death is final, a
// grant needs no transaction over both: one compare-and-set of the record is
// enough, and one that comes late loses to the version.
//
// A [Store] is an engine that keeps the two. An engine becomes one by a package
// that passes lease/storetest, and nothing here knows which it is.
//
// # Use
//
// A process makes one [Node] for everything it stands for, and an [Elector] for
// each group:
//
//	node, err := lease.New(store, lease.Config{
//		Candidate: tenure.Candidate{ID: "node-1", Address: "10.0.0.1:7000"},
//		Scope:     lease.Scope{"shard-*"},
//		Timing:    lease.LAN(),
//		Health:    disk.Check, // who is unwell hands over
//	})
//	if err != nil {
//		return err // says which field, and which rule
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
// Ten thousand shards cost the engine as many keep-alives as one does. Close
// waits for the work of all of them, and then frees them with one call.
//
// Whoever reads views from a Store directly (a service, a dashboard) keeps a
// [Cursor] for each group: [Since] turns a view into what happened after it.
// [Elector.Leaders] does that for one group.
//
// # What is decided where
//
// [Machine] decides everything: when to open a session, to beat, to read the
// line, to try for a vacant group and how long to wait for those before us; on
// which record a term begins, when it ends, when a grant is released and to whom;
// what an answer that was lost may have meant. It is pure: events and the time
// go in, actions come out. M1 to M5, on its type, are what it keeps to, and the
// conversations in testdata show it at work, one story each.
//
// [Node], the shell, decides nothing. It reads the clock, asks the store, each
// call in a goroutine with a deadline of its own, runs the watch and the health
// check, ends contexts, and brings the machine what happened. Its one loop waits
// for no call, so a store that hangs does not delay the end of a term. Package
// sim has another shell, of a few lines, and runs the same machine through bad
// networks and clocks.
//
// The shell has no part in one thing: tenure.Term.Check compares the clock with
// the trust that the machine last granted, in the caller's goroutine, and is
// right even when the loop did not get to run.
package lease
