// Package raft lets a fleet elect without any other service: the candidates
// themselves are a Raft cluster (hashicorp/raft), and the cluster has one group.
//
// # What is not guaranteed
//
// That no two nodes ever believe that they lead. Within the bounds of the
// configuration (clocks that differ in rate by no more than [Timing.Drift], no
// pause between a check and the write after it) there are no two. Outside of them
// there may be, and the sink refuses the older one: see package tenure.
//
// That anybody leads without a quorum. Of three nodes one may fail, of five two.
// What is left of a cluster without its quorum ends its terms within a Heartbeat,
// elects nobody, and answers [ErrUnavailable], never vacant.
//
// That a node may lose its data directory, or get an older one back from a backup.
// It holds the votes that the node gave and the entries that it acknowledged; a
// node that came back without them could vote twice, two could be elected, and a
// token could be given twice. It must come back under a new id: [Node.Remove] the
// old one, [Config.Join] the new one.
//
// That a node survives a disk that fails. One that hangs costs the term (see
// [Timing.Stall]); one that refuses to write down a vote or a Raft term makes
// hashicorp/raft panic, which ends the process, because to go on would be to lie.
//
// That Priority decides an election. Raft elects whoever asks first and is up to
// date. Priority orders those who wait when a leader resigns, closes, or does not
// campaign.
//
// That members are who they say they are, without [Config.TLS]. With it, whoever
// has a certificate of the authority is a peer: its name is not compared with the
// node's id.
//
// # What is
//
// Tokens grow with every term, through crashes, transfers and restarts of all
// nodes: the counter is part of the replicated state, and the term begins when the
// entry that raises it has been committed and applied here, while this node still
// leads. Leader and Leaders are linearizable. Nothing that was acknowledged is
// lost while a quorum keeps its disks.
//
// # How trust works
//
// A follower that has answered its leader helps nobody else to lead for one
// Heartbeat. So a leader that was answered by a quorum may trust itself for that
// long, counted from when it sent what was answered, less drift and margin.
// Raft's own VerifyLeader is no anchor for that: it is satisfied by answers to
// messages that were sent before it was called. The transport of this package
// takes down each sending and each answer, and closes what is left open
// (internal/pact):
//
//   - A restart forgets patience: so a node gives no votes, and asks for none, for
//     one Heartbeat after its start.
//   - A transfer overrides patience: so a leader that hands over first gives its
//     Raft term up for good. A transfer that fails is followed by another Raft
//     term with another token, and the message that carried it names the one term
//     in which it can be used, because Raft obeys it at whatever time it arrives.
//   - Raft answers heartbeats beside its main loop, so that it can answer a leader
//     while it writes down a vote for another, or for itself: such an answer is
//     not sent.
//   - A leader that has stepped down may vote at once: not while it trusts itself.
//   - A leader whose disk hangs goes on heartbeating: so a term also needs an entry
//     committed within [Timing.Stall]. That costs one append per [Timing.Beat] on
//     each node. When it is missed, the node sends nothing more in that Raft term,
//     and the others elect another.
//   - Nodes with different timings: nobody takes messages from one whose Heartbeat
//     is longer than its own.
//
// # How fast
//
// After a crash the followers lose their patience after one Heartbeat, look at the
// clock one after the other, a fifth of a Heartbeat apart, and the one that makes
// a quorum is elected. So of three nodes one leads after about 1.2 Heartbeats and
// a handful of disk writes; if votes are split or a log is behind, one or two
// Elections later. A transfer takes a few round trips and disk writes.
//
// # How to run one
//
//	node, err := raft.Open(raft.Config{
//		Candidate: tenure.Candidate{ID: "node-1"},
//		Group:     "billing",
//		Peers: map[string]string{
//			"node-1": "10.0.0.1:7400",
//			"node-2": "10.0.0.2:7400",
//			"node-3": "10.0.0.3:7400",
//		},
//		DataDir: "/var/lib/billing/raft",
//		TLS:     certificates,
//		Timing:  raft.LAN(),
//	})
//	if err != nil {
//		return err
//	}
//	defer node.Close(context.WithoutCancel(ctx))
//	return tenure.Lead(ctx, node, work)
//
// Every node of a new cluster is given the same Peers. A node that votes but never
// campaigns is one that is opened and not campaigned with: if Raft elects it, it
// hands over to one that does, or if nobody does, the group is vacant.
//
// Members come and go one at a time: [Config.Join], [Node.Leave], [Node.Remove].
// One that was removed cannot disturb the others, even if it does not know.
//
// After all data directories were restored from a backup, tokens may have gone
// back: call [Node.RaiseEpoch] before anybody campaigns.
package raft
