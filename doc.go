// Package tenure elects one leader per group and gives it a fencing token, with which
// a resource can refuse the writes of every earlier leader.
//
// # Limitations
//
// Two processes can believe that they lead at the same time. A process that was paused,
// suspended or cut off cannot know that it lost its lease, and continues for a while. No
// election can prevent that. It does not happen within the bounds of the configuration:
// clocks that differ in rate by no more than the drift, and no pause between a check and
// the write after it.
//
// A context may end late. [Term.Context] is cancelled by a goroutine. [Term.Check] on the
// line before a write reads the clock itself. Both leave a gap before the write.
//
// A resource that does not compare tokens is not protected.
//
// There is not always a leader. After a crash the group is vacant until the session of the
// crashed process has expired. Without a quorum of the engine nobody leads for longer than
// a TTL.
//
// # Guarantees
//
// Every term has a [fence.Token] that is larger than the tokens of all earlier terms of the
// group. A sink refuses a token below the highest that it has seen, in the same step as the
// write. Package fence has the rule; the packages below it are such sinks. So a sink never
// applies a stale leader's write after a newer leader's, whatever clocks, networks and
// garbage collectors do. A sink that [Lead] has sealed ([WithSinks]) applies none once the
// newer leader's work has begun.
//
// A term that has ended stays ended. On [Term.Resign] and [Term.TransferTo] the work of the
// old leader has returned before that of the new one begins. Work that does not return
// keeps the group for as long as its process lives.
//
// docs/guarantees.md names these claims and lists the faults under which each was tested.
//
// # Leading
//
// lease.Lead does everything. It takes a store, the group, the id of this process, and the
// work to do in each term:
//
//	err := lease.Lead(ctx, store, "billing", "node-1", func(ctx context.Context, term *tenure.Term) error {
//		for {
//			invoice, err := next(ctx)
//			if err != nil {
//				return err
//			}
//			if err := term.Check(); err != nil {
//				return err // this process no longer leads
//			}
//			if err := sink.Write(ctx, term.Stamp(), invoice); err != nil {
//				return err // refused: another leads
//			}
//		}
//	}, tenure.WithSinks(sink))
//
// Work returns when its context ends. It is called again when this process leads again.
// Everything that it writes carries [Term.Stamp]. Nobody can refuse its other effects
// (mails, payments): make them idempotent, or let a sink decide first.
//
// Below lease.Lead there are two parts. An [Elector] is one candidate in one group: package
// lease makes electors on any store (use lease.New for another timing, or for many groups
// with one session), and package raft on a Raft cluster. [Lead] runs work for an elector.
//
// A program that cannot be called back uses [Elector] directly: Campaign waits for a term,
// and [Term.Resign] gives it up after the work has stopped. A term that is not resigned
// lasts until its process ends. TryCampaign of package lease fails instead of waiting if
// another leads. [Term.AtRisk] warns that keep-alives fail and the term may end soon.
//
// Observers use the elector too: Leader asks once, Leaders yields every change. The answer
// says whom to talk to. There is no IsLeader: its answer would be out of date when it is
// used.
//
// # Vocabulary
//
// A group has one leader. A candidate is a process that wants to lead. A session is the
// engine's evidence that a process lives: keep-alives extend it, and it ends for good one
// TTL after the last one. A grant is the engine's decision that a session holds a group,
// with a token. A term is a grant as its holder sees it. Trust is until when the holder may
// act on it, which is less than a TTL after the last acknowledged keep-alive was sent. To
// seal a sink is to raise its mark to the new token before the first write. A stamp is what
// a write carries: deployment, group, token and, for sinks with one ordered writer, a
// sequence number. docs/glossary.md has all words.
//
// # Testing
//
// Package tenuretest runs elections, pauses, partitions and crashes in virtual time. A test
// with a stale leader takes fifteen lines.
package tenure
