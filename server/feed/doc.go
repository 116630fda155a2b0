// Package feed tells many observers about many groups with one watch of the engine.
//
// A [Feed] watches every group and passes each change to the subscribers of that group: the
// load on the engine does not grow with the number of observers. It is level-triggered, like
// the watch of the engine. A subscriber keeps a cursor for each group, is woken when the group
// changed, and computes the changes since then from the terms in the record. So a slow
// subscriber needs a flag and not a queue.
//
// A [Reader] shares linearizable reads: callers that ask for one group at the same time get the
// answer of one engine read, which began after each of them had asked.
//
// # Limitations
//
// A feed may be late. It is for observers, and a hint for candidates when to try. It never says
// that somebody may act.
package feed
