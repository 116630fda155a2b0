// Package supervise runs a command only while this process leads a group.
//
// Three processes take part: the supervisor (this package), which campaigns and keeps the
// session alive; the keeper (package keeper), its child, which stops the command before the
// deadline of the lease; and the command, a child of the keeper.
//
// If the keeper is killed, the command dies with it, and the supervisor, a subreaper too,
// kills the other processes. If the keeper hangs, the supervisor kills them at the same
// deadline. The supervisor gives up the group when the kernel has reported that no process
// is left.
//
// # Limitations
//
//   - If the whole machine or container is paused, all three processes resume together,
//     and the command runs until the keeper has read the clock.
//   - Processes that another program started for the command (a service manager, a
//     container engine, cron), and those that this user may not signal (setuid), are not
//     stopped.
//   - If supervisor and keeper are both killed at the same moment, or one is killed while
//     the other is stopped, processes can outlive the deadline. The command itself survives
//     only if the supervisor is killed while the keeper is stopped.
//   - Outside Linux only the command's process group is stopped.
//
// In all these cases a fenced resource refuses the writes: the command has its token.
package supervise
