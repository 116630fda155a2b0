// Package etcd keeps elections in an etcd cluster.
//
// # Limitations
//
// etcd keeps what it acknowledged. An etcd that was restored from a backup, or in which
// somebody deleted keys, has lost acknowledged grants. Then this package grants nothing and
// keeps no session alive until an operator raises the epoch (store.ErrRewound); Meta says
// why. It notices:
//
//   - a revision or an epoch that went back, and a record that was deleted or replaced by
//     an older one: clients that run meanwhile, which remember what they have seen;
//   - a record that was deleted and a deleted "meta" key: every client;
//   - another cluster id, as after a restored snapshot: every client.
//
// A fleet that was restarted together with an etcd whose data directory was rolled back
// cannot notice it, nor can one that was restarted after the whole prefix was deleted. So
// raise the epoch after every restore. A sink whose mark is above the token of a new leader
// also proves it.
//
// # Layout
//
// Everything lies under a prefix ("/tenure" unless configured), as JSON that
// etcdctl can read; nothing outside is touched:
//
//	record/{group}              the record: node_id, session, token, metadata, terms
//	session/{session}           a session, on its etcd lease; after a close its reason, for a while
//	beat/{session}              exists while the session lives, on the same lease
//	attempt/{digest}            the id of the session that an attempt opened, on its lease
//	grant/{group}               the group was granted in this epoch: it must have a record
//	history/{group}/{slot}      terms that no longer fit the record
//	requests/{session}          what was asked of a session
//	attribute/{name}            attributes
//	rules                       written with each policy, cool-down and cordon: its version is compared by grants
//	meta                        deployment, epoch, incarnation, format; rewound and why
//
// A key's version is its mod revision, a session's id that of its lease, which the
// client chooses: the retries of an Open ask for the same lease. One watch sees sessions and
// records in the order in which they changed: a vacancy that it announces needs no second look.
//
// # Upgrading
//
// This is format 2. A prefix in format 1 (keys below "election/" and "electors/") is
// refused, and a program that writes format 1 refuses this one. To move, end the programs
// of the former version, choose another Prefix, set Deployment to the name of the former
// one, and raise the epoch above the former one before candidates start: then sinks accept
// the new tokens.
//
// # A beat means a quorum
//
// An etcd leader that has lost its followers goes on acknowledging keep-alives
// for a while, and nobody else knows of them. So a keep-alive counts only with a
// linearizable read behind it that was answered in the same Raft term: then the
// leader that renewed the lease still had its quorum afterwards.
//
// # Members
//
// Each call is given to one member and moves on to the next when that one fails
// or is slow, within the call's deadline; the one that answered is asked first
// next time. A member that is stopped, black-holed or killed costs one try. When etcd has
// elected a leader, that member is asked first, because it applies commits before the others.
package etcd
