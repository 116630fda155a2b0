// Package supervise runs a command only while this process leads a group.
//
// # What is not guaranteed
//
// That nothing outlives the deadline while the whole machine, or the container with
// everything in it, stands still: what is frozen together wakes up together, and runs for
// as long as the keeper needs to see the time. That a process is found which the command
// had somebody else start for it (a service manager, a container engine, cron), or which
// this user may not signal (setuid). That anything but the command itself is ended when
// wrapper and keeper are both killed by force in the same instant, or one of them while the
// other is stopped: a stopped keeper whose wrapper is killed ends nothing, the command
// included, before it goes on; nor does a stopped wrapper whose keeper is killed, but for
// the command. What such a process writes is for a sink to refuse: the command gets its
// fencing token for that.
//
// Outside of Linux a process that leaves the command's process group is not found, and
// killing the keeper ends nothing but what the wrapper still knows of. The deadline and
// the group are kept there too.
//
// # What is
//
// Three processes: the wrapper, which campaigns and keeps the session alive; the keeper, a
// child of the wrapper, which holds the deadline; the command, a child of the keeper, in a
// process group of its own. The keeper is a subreaper: whatever the command starts stays
// below it, double-forked or in a session of its own.
//
//	deadline                 the last moment at which the grant is certainly ours
//	deadline − Reserve       SIGKILL, again and again until nothing is left
//	… − grace                SIGTERM; the term is over, and does not come back
//
// The deadline is an instant on the clock of package clock, counted from the sending of
// the last acknowledged keep-alive, and it reaches the keeper as such: a message that is
// late says nothing newer. So a wrapper that is paused, killed or cut off from its engine
// leaves the command running no longer than the lease. A keeper that is killed takes the
// command with it, and the wrapper, a subreaper too, ends the rest; one that stands still is
// overtaken by the wrapper at the same deadline. The group is given up when the kernel has
// said that nothing of the tree is left.
package supervise
