// Package feed tells many observers about many groups for the price of one.
//
// A [Feed] holds one watch of the engine, over every group, and hands each change to
// whoever subscribed to that group: the engine's cost does not grow with the observers.
// It is level-triggered, as the engine's watch is. A subscriber keeps a cursor for each
// group, is woken when the group moved, and computes what happened since from the terms
// in the record, so a slow one costs a flag and not a queue.
//
// A [Reader] shares linearizable reads: callers that ask for one group at the same
// time get the answer of one engine read, which began after each of them had asked.
//
// What a feed knows may be late; it is for observers, and as a hint of when to try. It
// never says that somebody may act.
package feed
