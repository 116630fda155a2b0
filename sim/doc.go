// Package sim plays elections in a world made of nothing but events: the real
// machine of package lease and the real store of package kv in several processes, the
// engine of store/mem, fenced and unfenced sinks, and roads that lose, delay, double and
// cut messages. Each call of a machine runs as a coroutine that stops at every operation
// of its driver, so the world decides what arrives, when, and whether the answer does.
// Clocks run at different rates, processes stand still, crash and come back, the store
// goes away and is rewound, operators interfere. Time and chance come from one seed, so a
// run repeats to the last event.
//
// Four seeds of ten are plain worlds. Three are rich: they have some of the traits in
// kinds.go as well. One is a drill: one disturbance at a time, with strict expectations.
//
// Two are served: two instances of the election service run the real code of
// internal/election, and three clients lead over HTTP as docs/api.md describes, beside two
// candidates that use the library. Calls between client and instance are lost, late and
// repeated, connections break and nobody notices, instances restart, operators cordon nodes,
// and clocks differ by as much as they may.
//
// The seed also decides what the engine can do: expire sessions by itself or leave that to
// the processes, one key in a transaction or many, watches with values in order or hints in
// any order, with or without gaps.
//
// The guarantees G1 to G8, the checks E1 to E8 (docs/guarantees.md) and the promises S1 to S5 of
// lease.Store are asserted by name at every event that could break them. A
// broken one ends the run, and the seed replays it:
//
//	go run ./sim/cmd/sim -seed 4711 -v
package sim
