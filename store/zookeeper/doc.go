// Package zookeeper keeps elections in a ZooKeeper ensemble.
//
// # Limitations
//
// ZooKeeper keeps what a quorum acknowledged. The smallest sound TTL is longer than the ensemble
// needs to elect a leader after its own has died: syncLimit times tickTime plus about a second,
// 11 s with ZooKeeper's example configuration. A shorter TTL (2 s at least by default) is safe,
// but sessions end when the ensemble's leader dies.
//
// Expiry is observed (see package kv): candidates end a session that was silent for its TTL,
// within about an eighth of the TTL more. A session that nobody observes stays alive. The nodes
// are not ephemeral, because the client library keeps a ZooKeeper session alive by itself: a
// process that hangs would still lead.
//
// After a restore from an old data directory, or if somebody deletes the path, acknowledged
// grants are lost. Then this package grants nothing until an operator raises the epoch
// (store.ErrRewound). Clients that were running at the time notice it, because they remember
// what they have seen. If all clients are restarted together with the ensemble, they cannot
// notice it. So raise the epoch after every restore.
//
// # Rights
//
// With a user (digest scheme), only this user has rights on the nodes that the package creates.
// The user needs the right to create the path, or all rights on it. ZooKeeper does not
// distinguish a wrong password from a missing right: both are store.ErrDenied.
//
// # Connections and sessions
//
// The driver has one connection to one server, and one ZooKeeper session for each connection.
//
//   - Connection lost ([ErrConnectionLost]): the connection broke or the server did not answer.
//     The outcome of a write in flight is unknown, and the error says so. The driver retries
//     reads. It connects to the next server, and watches continue without a gap.
//   - Session lost ([ErrSessionLost]): ZooKeeper ended the session and refused the call, which had
//     no effect. The driver opens another session and retries, so callers see this error only
//     at their deadline.
//
// Neither ends a session of Tenure. Only its TTL does. A watch has a gap, and reads everything
// again, if it missed more changes than are kept (256), or if the ensemble lost data.
//
// # Linearizable reads
//
// A ZooKeeper server answers reads from its own copy, which may be stale. So every read follows a
// small write on the same connection, which a quorum must accept. A sync is not enough: the
// leader answers it without a quorum, even if its followers have elected another leader. A
// waiting candidate reads the leader's session about eight times during its TTL, so it makes
// about eight such writes in addition to its own keep-alives.
//
// A list reads one node for each key, in a pipeline, because the client library has no multiRead.
//
// # Layout
//
// The nodes are below a path ("/tenure" unless configured), with the keys of package kv as paths
// and JSON as values. The driver adds three nodes:
//
//	.index      written by every transaction; its mzxid is the index
//	.changes    a numbered child for each transaction that watchers must see
//	.life       the incarnation: when the current leader of the ensemble began, to notice lost data
//
// A key's version is the mzxid of its node, which never repeats. A watcher has one ZooKeeper
// watch, on .changes, however many groups there are. A change wakes every watcher, which reads
// the change and then only the groups that it watches. Candidates try in the order of the line,
// so a vacancy causes one attempt and not one from each candidate.
package zookeeper
