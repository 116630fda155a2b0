// Package sim plays elections in a world made of nothing but events: the real
// machine of package lease in several processes, the state of store/mem as the
// engine, fenced and unfenced sinks, and roads that lose, delay, double and cut
// messages. Clocks run at different rates, processes stand still, crash and come
// back, the store goes away and is rewound, operators interfere. Time and chance
// come from one seed, so a run repeats to the last event.
//
// Six seeds of ten are plain worlds. Three are rich: they have some of the traits in
// kinds.go as well. One is a drill: one disturbance at a time, with strict expectations.
//
// The guarantees G1 to G8, the checks E1 to E7 (docs/guarantees.md) and the promises S1 to S5 of
// lease.Store are asserted by name at every event that could break them. A
// broken one ends the run, and the seed replays it:
//
//	go run ./sim/cmd/sim -seed 4711 -v
package sim
