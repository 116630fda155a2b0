// Package sim runs elections in a simulated world: the real machine (internal/machine) and the real
// store of package kv in several processes, the engine of store/mem, sinks with and without a
// fence, and a network that loses, delays, duplicates and cuts messages. Each call of a machine
// runs as a coroutine that stops at every operation of its driver, so the world decides what
// arrives, when, and whether the answer does. Clocks run at different rates, processes pause,
// crash and restart, the store fails and loses data, operators intervene. Time and randomness
// come from one seed, so a run repeats exactly.
//
// Three seeds of ten are plain worlds. Three are rich: they also have some of the traits in
// kinds.go. One is a drill: one disturbance at a time, with strict expectations. Two are served:
// two instances of the election service run the real code of internal/election, and three clients
// lead over HTTP as docs/api.md describes, beside two candidates that use the library. One has shards:
// each process also runs the machine of internal/placement, joins and leaves, and operators change
// weights and pins, which the processes do not all read alike. The seed also decides what the engine can do: expire sessions itself or leave that to the processes, one key
// in a transaction or many, watches with ordered values or unordered hints, with or without gaps.
//
// The guarantees G1 to G8, the checks E1 to E13 (docs/guarantees.md) and the promises S1 to S5 of
// store.Store are asserted by name at every event that could break them. A violation ends the
// run, and the seed replays it:
//
//	go run ./sim/cmd/sim -seed 4711 -v
//
// # Limitations
//
// The shell (lease.Node, goroutines, real timers) and real engines are not simulated; other tests
// cover them. A clean run proves only that the faults of these seeds broke nothing. Planted bugs
// (make sim-planted) show what the checks can catch.
package sim
