// Package etcd keeps elections in an etcd cluster.
//
// What it does not promise first: etcd keeps what it acknowledged, so this
// engine does; but an etcd that was restored from a backup has forgotten
// acknowledged grants. A client that had seen more may notice, and so does every
// client when the cluster's id has changed; a fleet that was restarted together
// with an etcd restored under its old id cannot, and nobody can after a restore
// that also raised etcd's revision. So raise the epoch after every restore. The
// other way to notice is a sink whose mark is above the new leader's token.
//
// # Layout
//
// Everything lies under a prefix ("/tenure" unless configured), as JSON that
// etcdctl can read; nothing outside is touched:
//
//	election/{group}            the record: node_id, session, fence_token, metadata, terms
//	electors/{session}          a session, attached to its etcd lease
//	history/{group}/{token}     terms that no longer fit the record
//	request/{session}/{id}      what was asked of a session, until it expires
//	attribute/{name}            attributes
//	meta                        deployment, epoch, cluster, format
//
// A record's version is its mod revision, a session's id that of its lease.
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
