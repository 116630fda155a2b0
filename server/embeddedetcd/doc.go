// Package embeddedetcd runs a real etcd inside the process: one member alone, or one
// member of a cluster of three, five or more.
//
// What is not promised comes first. An engine beside the workload shares its
// fate: an overloaded host slows both, a crashed one takes both, and one member
// alone tolerates no loss at all. Start says so, in Notices and in the log.
//
// What is promised:
//
//   - Start returns a member that serves clients, or an error that names the
//     address or the path that is to blame, within ReadyTimeout and what it
//     takes to stop again (StopTimeout at most).
//   - A Start that failed leaves nothing running, no lock and no directory that
//     it made, with two exceptions. The log of a member of a cluster is kept once
//     it exists: a member that forgets how it voted could vote twice. And where
//     etcd itself gave up half way (it would have ended the process), what it had
//     opened stays open until the process ends; the directory and the disk are
//     examined first to make that rare.
//   - A member alone listens on no TCP port unless ClientURL or PeerURL says so. Its
//     unix socket is in a directory that only this user can enter.
//   - Nothing listens beyond loopback without TLS unless Insecure is set.
//   - A member whose disk fails stops acknowledging and says so on Err; it does
//     not end the process, whose work must be stopped first. etcd may not end by itself
//     then: Stop gives up after StopTimeout, and the data directory stays locked until
//     the process ends.
//
// A library of Tenure never imports this package: its users choose their engine.
package embeddedetcd
