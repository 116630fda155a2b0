// Package etcd keeps elections in an etcd cluster.
//
// # Limitations
//
// etcd keeps what it acknowledged. An etcd that was restored from a backup, or in which
// somebody deleted keys, has lost acknowledged grants. Then this package grants nothing and
// keeps no session alive until an operator raises the epoch (lease.ErrRewound); Meta says
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
//	election/{group}            the record: node_id, session, fence_token, metadata, terms
//	electors/{session}          a session, attached to its etcd lease
//	electors/{session}/ended    why the session was closed, until its lease is revoked
//	attempt/{digest}            the id of the session that an attempt opened, on its lease
//	granted/{group}             the group was granted in this epoch: it must have a record
//	history/{group}/{token}     terms that no longer fit the record
//	request/{session}/{id}      what was asked of a session, until it expires
//	attribute/{name}            attributes
//	meta                        deployment, epoch, cluster, format; rewound and why
//
// A record's version is its mod revision, a session's id that of its lease, which the
// client chooses: the retries of an Open ask for the same lease.
// "electors" follows "election" in the order of keys, so that one watch sees
// records and sessions in the order in which they changed: a vacancy that it
// announces needs no second look.
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
// next time. A member that is stopped, black-holed or killed costs one try.
package etcd
