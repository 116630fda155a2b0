// Package zookeeper keeps elections in a ZooKeeper ensemble.
//
// # Limitations
//
// ZooKeeper keeps what a quorum acknowledged. The smallest sound TTL is longer than the ensemble
// needs to elect a leader after its own has died: syncLimit times tickTime plus about a second,
// 11 s with ZooKeeper's example configuration. A shorter TTL (2 s at least by default) is safe,
// but sessions end when the ensemble's leader dies.
//
// Expiry is observed (see package kv): somebody who watches ends a session that was silent for
// its TTL, within about an eighth of the TTL more. A session that nobody watches lives on. The
// nodes are not ephemeral: the client library keeps a ZooKeeper session alive by itself, so a
// process that hangs would go on leading.
//
// An ensemble that was restored from an old data directory, or in which somebody deleted the
// path, has lost acknowledged grants. Then this package grants nothing until an operator raises
// the epoch (store.ErrRewound). Clients notice it that run meanwhile, because they remember what
// they have seen. A fleet that was restarted together with the ensemble cannot notice it. So
// raise the epoch after every restore.
//
// # Rights
//
// With a user (digest scheme) the nodes are created with all rights for that user alone. The user
// needs the right to create the path, or all rights on it. ZooKeeper cannot tell a wrong
// password from a missing right: both are store.ErrDenied.
//
// # Connections and sessions
//
// The driver has one connection to one server, and one ZooKeeper session for each connection.
//
//   - Connection lost ([ErrConnectionLost]): the connection broke or the server did not answer.
//     The outcome of a write that was on its way is unknown, and the error says so. Reads are
//     tried again. The driver connects to the next server, and watches go on without a gap.
//   - Session lost ([ErrSessionLost]): ZooKeeper ended the session and refused the call, which had
//     no effect. The driver opens another session and tries again, so callers see this error
//     only at their deadline.
//
// Neither ends a session of Tenure. Only its TTL does. A watch has a gap, and reads everything
// again, if it missed more changes than are kept (256), or if the ensemble lost data.
//
// # Linearizable reads
//
// A ZooKeeper server answers reads from its own copy, which may be old. So every read follows a
// small write on the same connection, which a quorum must accept. A sync is not enough: the
// leader answers it without asking its followers, also if they have elected another leader.
// A candidate that waits reads the leader's session about eight times during its TTL, so it
// costs about eight such writes beside its own keep-alives.
//
// Lists read one node for each key, without waiting between them. The client library has no
// multiRead.
//
// # Layout
//
// Everything lies under a path ("/tenure" unless configured), as JSON, with the keys of package
// kv as paths. The driver adds three nodes:
//
//	.index      written by every transaction; its mzxid is the index
//	.changes    a numbered child for each transaction that watchers must see
//	.life       when the present leader of the ensemble began, to notice lost data
//
// A key's version is the mzxid of its node. It never repeats. A watcher has one ZooKeeper watch,
// on .changes, however many groups there are. A change wakes every watcher, which reads the
// change and then only the groups that it watches. The candidates' order decides who tries to
// lead, so a vacancy causes one attempt and not one from each candidate.
package zookeeper
