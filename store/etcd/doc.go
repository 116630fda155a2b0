// Package etcd keeps elections in an etcd cluster.
//
// # Limitations
//
// etcd keeps what it acknowledged. But after a restore from a backup, or if somebody deletes
// keys, acknowledged grants are lost. Then this package grants nothing and keeps no session
// alive until an operator raises the epoch (store.ErrRewound); Meta says why. It notices:
//
//   - a revision or an epoch that went back, and a record that was replaced by an older one:
//     clients that were running at the time, because they remember what they have seen;
//   - a deleted record or "meta" key: every client;
//   - another cluster id, as after a restored snapshot: every client.
//
// If all clients are restarted together with an etcd whose data directory was rolled back, or
// after the whole prefix was deleted, they cannot notice it. So raise the epoch after every
// restore. A sink also notices it, if its mark is above the token of a new leader.
//
// # Layout
//
// All keys have a prefix ("/tenure" unless configured). The values are JSON, which etcdctl
// can show:
//
//	record/{group}              the record: node_id, session, token, metadata, terms
//	session/{session}           a session, on its etcd lease; after a close its reason, for a while
//	beat/{session}              exists while the session is alive, on the same lease
//	attempt/{digest}            the id of the session that an attempt opened, on its lease
//	grant/{group}               the group was granted in this epoch: it must have a record
//	floor/{prefix}/{number}     at least as high as the tokens of removed records, see store.Retirer
//	history/{group}/{slot}      terms that no longer fit the record
//	requests/{session}          operators' requests to a session
//	attribute/{name}            attributes
//	rules                       written with each policy, cool-down and cordon: grants compare its version
//	meta                        deployment, epoch, incarnation, format; rewound and why
//
// A key's version is its mod revision. A session's id is the id of its lease. The client
// chooses it, so that retries of an Open use the same lease. One watch sees the changes of
// sessions and records in their order, so it can report a vacancy without another read.
//
// # Upgrading
//
// This is format 2. The package refuses a prefix in format 1 (keys below "election/" and
// "electors/"), and programs that write format 1 refuse this one. To upgrade, stop the old
// programs, choose another Prefix, set Deployment to the old deployment's name, and raise the
// epoch above the old one before candidates start, so that sinks accept the new tokens.
//
// # Keep-alives and quorum
//
// An etcd leader that has lost its followers acknowledges keep-alives for a while,
// and the next leader does not know of them. So a keep-alive counts only if a
// linearizable read after it is answered in the same Raft term: then the leader that
// renewed the lease still had its quorum afterwards.
//
// # Members
//
// A call goes to one member, and to the next one if that member fails or is slow,
// within the call's deadline. The next call starts with the member that answered. A
// member that does not answer costs one try. After an election of etcd, calls start
// with the new leader, because it applies commits before the others.
package etcd
