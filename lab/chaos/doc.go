// Package chaos injects faults into a running fleet. [Kinds] is the table of all faults:
// kill, pause, partition, skew, resign and others, of the leader or of named processes.
// Experiments, the storm and the chaos command use this one table.
//
// [Fleet.Inject] returns when the fault is over. The fault is healed at its end, when the
// context ends, and when the caller panics; a paused process is resumed even if the process
// that paused it is killed. A [Fault] says when it began and was healed, on the clock that
// all processes of a host share (clock.System), and what shows its effect. A fault without
// a visible effect is an error, [ErrNoEffect].
//
// # Limitations
//
// Only fleets of a lab are touched. No privileges are needed, except that failing disks need
// strace. Connections are cut at the proxies that the lab puts in front of each node.
// Processes can be paused on Linux only.
package chaos
