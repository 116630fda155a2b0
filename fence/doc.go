// Package fence holds the rule that keeps a stale leader's work from taking
// effect.
//
// A lease is a belief: a process that was paused or cut off cannot know that it
// lost its lease. So safety lives with the resource. Every write carries a
// [Stamp] with the leader's [Token]; the resource (a sink) remembers the
// highest token it has seen as its [Mark], and refuses what is below, in the
// same atomic step as the write:
//
//	next, err := mark.Admit(stamp) // inside the transaction
//	if err != nil {
//		return err // a newer leader was here: nothing is written
//	}
//	// make the write and store next, then commit
//
// A check apart from the write is not a fence: the process may be paused
// between the two. A mark kept in memory is not a fence either: it is gone with
// the next restart.
//
// [Mark.Admit] is the rule for sinks with many writers under one leader,
// [Mark.AdmitStrict] the one for a single ordered writer. Both are pure
// functions. The package has no I/O and no state.
package fence
