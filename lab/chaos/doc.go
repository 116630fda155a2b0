// Package chaos injects faults into a running fleet. [Kinds] is the table of all faults:
// the leader is killed, cut off, paused, given a wrong clock or asked to go; any other
// process (a member of the engine, the ledger, a node) is named, killed, paused and cut
// off, several at once; the ledger's disk fails; a node is stopped or killed at a moment of
// a change of leader. Experiments, the storm and the chaos command use this one table.
//
// [Fleet.Inject] returns when the fault is over. It is healed at its end, when the context
// ends, and when the caller panics; a process that was paused goes on even if the one that
// paused it is killed. A [Fault] says on one clock (clock.System, which all processes of a
// host share) when it began and when it was healed, and what shows its effect: one without
// a visible effect is an error, [ErrNoBite].
//
// Limitations. Only fleets of a lab are touched. No privileges are needed, except that
// failing disks need strace: connections are cut at the proxies that the lab has put before
// each node. Processes can be paused on Linux only.
package chaos
