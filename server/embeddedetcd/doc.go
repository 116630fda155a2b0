// Package embeddedetcd runs etcd inside this process: one member alone, or one member of a
// cluster.
//
//   - Start returns a member that serves clients, or an error with the address or the path
//     that is the cause, within ReadyTimeout plus StopTimeout.
//   - A Start that fails leaves nothing running, no lock and no directory that it made. Two
//     exceptions: the log of a member of a cluster is kept once it exists, because a member
//     that forgets its vote could vote twice; and if etcd itself gave up (it would have
//     ended the process), its open files stay open until the process ends. Start checks
//     directory and disk first to make that rare.
//   - A member alone listens on no TCP port unless ClientURL or PeerURL is set. Its unix
//     socket is in a directory that only this user can enter.
//   - Nothing listens beyond loopback without TLS unless Insecure is set.
//   - A member whose disk fails stops acknowledging and reports it on Err. It does not end
//     the process. If etcd does not end by itself, Stop gives up after StopTimeout, and the
//     data directory stays locked until the process ends.
//
// # Limitations
//
// An engine beside the workload shares its failures: an overloaded host slows both, and a
// crash takes both. One member alone tolerates no failure. Start says so in Notices and in
// the log.
//
// No library of Tenure imports this package: its users choose their engine.
package embeddedetcd
