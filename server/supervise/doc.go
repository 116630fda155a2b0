// Package supervise runs a command only while this process leads a group.
//
// Three processes take part: the supervisor (this package), which campaigns and keeps the
// session alive; the keeper (package keeper), its child, which stops the command before the
// deadline of the lease; and the command, a child of the keeper.
//
// If the keeper is killed, the command dies with it, and the supervisor, a subreaper too,
// kills the other processes. The keeper acknowledges every deadline; if it hangs, the
// supervisor kills everything at the last deadline that it acknowledged, and gives up the
// term. The supervisor gives up the group when the kernel has reported that no process is
// left.
//
// If the supervisor is killed, the keeper stops every process of the command and then closes
// the session, so that the next candidate does not wait for the TTL. The pidfd of the
// supervisor proves its death, and the kernel reports that the keeper, a subreaper or an
// init, has no child left. Without both proofs (outside Linux, before Linux 5.3, a process
// that cannot be killed, a keeper that is gone too) the session expires.
//
// With Config.Isolate the keeper is the init of a pid namespace in which the command runs.
// The kernel kills every process of the namespace when the keeper dies.
//
// # Limitations
//
//   - If the whole machine or container is paused, all three processes resume together,
//     and the command runs until the keeper has read the clock.
//   - Processes that another program started for the command (a service manager, a
//     container engine, cron) are not stopped. Without Isolate, those that this user may
//     not signal (setuid) are not stopped either.
//   - Without Isolate, processes other than the command can outlive the deadline if
//     supervisor and keeper are both killed at the same moment, or if the keeper is killed
//     while the supervisor is stopped. A service manager that kills the cgroup of a unit
//     that has ended, as systemd does, stops them.
//   - If the supervisor is killed and the keeper is stopped after that, or both are
//     stopped, all processes can outlive the deadline.
//   - Outside Linux only the command's process group is stopped.
//
// In all these cases a fenced resource refuses the writes: the command has its token.
package supervise
