// Package tenure elects one leader per group, and gives it the token that keeps
// everybody else's work from taking effect.
//
// # What is not guaranteed
//
// That there is never more than one process that believes it leads. A lease is a
// belief: a process that was paused, suspended or cut off cannot know that it
// lost its lease, and runs on for a while. No election can prevent it. Within
// the bounds of the configuration (clocks that drift no more than is said, no
// pause between a check and the write after it) there are no two; outside of
// them there may be.
//
// That a context ends in time. [Term.Context] is a courtesy, [Term.Check] on the
// line before a write reads the clock, and both leave a gap.
//
// That a sink which does not check the token is safe. It is not.
//
// That there is a leader at every moment. After a crash the group is vacant until
// the session of the crashed process has expired, and without a quorum of the
// engine nobody leads for longer than a TTL.
//
// # What is
//
// Every term has a [fence.Token] that is larger than those of all terms of the
// group before it. A sink refuses what is below the highest token it has seen,
// in the same step as the write (package fence holds the rule, the packages
// below it are such sinks). So it never takes a stale leader's write after a
// newer leader's, no matter what clocks, networks and garbage collectors do. A
// sink that [Lead] sealed ([WithSinks]) takes none from the moment that the newer
// leader's work begins.
//
// A term that has ended stays ended. On [Term.Resign] and [Term.TransferTo] the
// work of the old leader has returned before that of the new one begins. Work
// that does not return keeps the group, for as long as its process lives.
//
// docs/guarantees.md gives these claims their names, and says under which faults
// each was tested.
//
// # How to lead
//
// One call leads: it takes a store, the group, the id of this process, and the work
// that it does for each term won.
//
//	err := lease.Lead(ctx, store, "billing", "node-1", func(ctx context.Context, term *tenure.Term) error {
//		for {
//			invoice, err := next(ctx)
//			if err != nil {
//				return err
//			}
//			if err := term.Check(); err != nil {
//				return err // no longer the leader
//			}
//			if err := sink.Write(ctx, term.Stamp(0), invoice); err != nil {
//				return err // refused: another leads
//			}
//		}
//	}, tenure.WithSinks(sink))
//
// Work returns when its context ends; it is called again when this process leads
// again. Everything that it writes carries [Term.Stamp]. What it does besides
// (mails, payments) cannot be refused by anybody: make it idempotent, or let a
// sink decide first.
//
// Below that call there is an [Elector], which stands for one candidate in one group,
// and [Lead], which runs work for it. Package lease makes electors on any store that
// passes lease/storetest (lease.New, for another timing or many groups with one
// session), package raft on a Raft cluster.
//
// Whoever cannot be called back, such as a program that is written around its own
// loop, uses [Elector] itself: Campaign waits for a term, and [Term.Resign] gives
// it up when the work has stopped. A campaign that is won and not resigned is led
// until its process ends. TryCampaign of package lease fails instead of waiting when
// another leads. [Term.AtRisk] warns that a term is about to end for lack of keep-alives.
//
// Observers ask the elector: Leader once, Leaders for every change. What they
// learn is whom to talk to. There is no IsLeader in this package: the answer
// would be out of date when it is read.
//
// # The words
//
// A group is what has one leader. A candidate is a process that wants to lead. A
// session is its liveness at the engine: it is kept alive by beats and dies for
// good, a TTL after the last one. A grant is the engine's record that a session
// holds a group, with a token. A term is that grant as its holder sees it. Trust
// is until when the holder may believe it: less than a TTL after the last
// acknowledged beat was sent. To seal a sink is to raise its mark to one's own
// token before the first write. A stamp is what a write carries: deployment,
// group, token and, for sinks with one ordered writer, a sequence number.
//
// # Testing a service that leads
//
// Package tenuretest simulates elections, pauses, partitions and crashes in
// virtual time; a zombie takes fifteen lines.
package tenure
