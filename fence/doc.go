// Package fence has the rule by which a resource refuses the writes of a stale leader.
//
// A process that was paused or cut off cannot know that it lost its lease. So the resource
// decides. Every write carries a [Stamp] with the leader's [Token]. The resource, called a
// sink, stores the highest token that it has seen as its [Mark], and refuses smaller ones in
// the same atomic step as the write:
//
//	next, err := mark.Admit(stamp) // inside the transaction
//	if err != nil {
//		return err // a newer leader has been here: write nothing
//	}
//	// make the write, store next, commit
//
// [Mark.Admit] is the rule for sinks with many writers under one leader. It refuses a token
// below the mark and accepts an equal one, because a leader writes more than once with its
// token. [Mark.AdmitStrict] is the rule for a single ordered writer. Both are pure functions.
// The package has no I/O and no state.
//
// # Limitations
//
// A check that is separate from the write is not a fence: the process may be paused between
// the two. A mark in memory is not a fence: a restart loses it. The first stamp that a sink
// sees is accepted, whatever its token.
//
// A token protects against mistakes, not against attackers. A [Verifier] can check
// signatures; the default, [Unsigned], accepts every stamp.
//
// The packages below this one are sinks for databases, files, Redis and workers, and carry
// stamps over HTTP and gRPC. Package fencetest tests a sink.
package fence
