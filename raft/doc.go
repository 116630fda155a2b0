// Package raft lets a fleet elect without any other service: the candidates
// themselves are a Raft cluster (hashicorp/raft), and the cluster has one group.
//
// # Limitations
//
// Two nodes can believe that they lead. It does not happen within the bounds of the
// configuration: clocks that differ in rate by no more than [Timing.Drift], and no
// pause between a check and the write after it. Outside of them the sink refuses the
// older one: see package tenure.
//
// Nobody leads without a quorum. Of three nodes one may fail, of five two. Nodes
// without a quorum end their terms within a Heartbeat, elect nobody, and answer
// [ErrUnavailable], never vacant.
//
// A node must not lose its data directory or get an older one from a backup. It has
// the votes that the node gave and the entries that it acknowledged. Without them the
// node could vote twice, two leaders could be elected, and a token could be granted
// twice. Such a node must come back under a new id: [Node.Remove] the old one,
// [Config.Join] the new one. A copy of a directory that runs beside the original under the
// same id has the same effect. The other nodes log an error when they hear both.
//
// A failing disk ends a term or the process. A disk that hangs ends the term (see
// [Timing.Stall]). If a vote or a Raft term cannot be written, hashicorp/raft panics,
// which ends the process.
//
// Priority does not decide an election. Raft elects a node that asks first and is up
// to date. Priority orders the waiting nodes when a leader resigns, closes, or does
// not campaign.
//
// Without [Config.TLS], members are not authenticated. With it, every holder of a
// certificate of the authority is a peer: the name in the certificate is not compared
// with the node's id. A peer that lies about a death can cause an election, and for as long as
// the leader trusts itself two nodes may then believe that they lead.
//
// # Guarantees
//
// Tokens grow with every term, through crashes, transfers and restarts of all
// nodes: the counter is part of the replicated state, and the term begins when the
// entry that raises it has been committed and applied here, while this node still
// leads. Leader and Leaders are linearizable. Nothing that was acknowledged is
// lost while a quorum keeps its disks.
//
// # Trust
//
// A follower that has answered its leader votes for nobody else for one Heartbeat. So
// a leader that was answered by a quorum may trust itself for that long, counted from
// when it sent the message that was answered, less drift and margin. Raft's own
// VerifyLeader cannot be used for that: it accepts answers to messages that were sent
// before it was called. The transport of this package records when each message was
// sent and answered, and closes the remaining gaps (internal/pact):
//
//   - A restart: a follower no longer knows whom it answered. So a node neither votes
//     nor asks for votes for one Heartbeat after its start.
//   - A transfer: it makes followers vote at once. So a leader that hands over first
//     gives its Raft term up for good. A transfer that fails is followed by another
//     Raft term with another token. The message of a transfer names the one term in
//     which it can be used, because Raft obeys it whenever it arrives.
//   - Heartbeats: Raft answers them outside of its main loop, so it could answer a
//     leader while it writes a vote for another. Such an answer is not sent.
//   - A leader that has stepped down does not vote while it still trusts itself.
//   - A leader whose disk hangs still sends heartbeats. So a term also needs an entry
//     committed within [Timing.Stall]. That costs one append per [Timing.Beat] on each
//     node. If it is missed, the node sends nothing more in that Raft term, and the
//     others elect another.
//   - Different timings: a node ignores messages from one with a longer Heartbeat.
//
// # Failover time
//
// After a crash the followers start to elect after one Heartbeat, one after the other,
// a fifth of a Heartbeat apart, and the one that gets a quorum is elected. So of three
// nodes one leads after about 1.2 Heartbeats and a few disk writes; if votes are split
// or a log is behind, one or two Elections later. A transfer takes a few round trips
// and disk writes.
//
// With [Config.Keeper] a crash of the leader's process costs only these. The keeper (package
// pulse, with the store of [Notices]) tells the followers when the kernel has reported the death.
// The one with the longest log then takes over as after a transfer. A notice names the node, its
// process and its Raft term; a follower that follows another node, another process or another
// term refuses it. If the host dies, if the keeper is gone, or if no follower hears it, the
// Heartbeat applies.
//
// # Running a cluster
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
// Every node of a new cluster has the same Peers. A node that is opened and never
// campaigns only votes: if Raft elects it, it hands over to a node that campaigns;
// if there is none, the group is vacant.
//
// Members join and leave one at a time: [Config.Join], [Node.Leave], [Node.Remove].
// A removed node cannot disturb the others, even if it does not know that it was
// removed.
//
// After all data directories were restored from a backup, tokens may have gone
// back: call [Node.RaiseEpoch] before anybody campaigns.
package raft
