// Package placement decides for one process for which shards of a set it campaigns, and which it
// hands over to whom. Like internal/machine it is pure: events and the time go in, actions come out.
// It reads no clock, starts no goroutine and waits for nothing. Package shard drives it in a user's
// process, and package sim in simulated worlds.
//
// Placement is advice. Each shard is a group, and the election of that group decides who owns it.
//
// # Limitations
//
// A machine knows only its own shards. Machines with different views of the rules, or of who lives,
// hand a shard back and forth, but ever less often.
package placement
