// Package worker is a process that acts on the orders of a fleet's leader, and on
// nobody's below.
//
// What is not guaranteed: that an order is acted on once. One that was under way when
// the worker died, or when a new leader came, is begun again. What a handler does
// elsewhere is not fenced by its worker: see package workerfence.
//
// What is: an order of a lower token than the highest that was ever seen is refused,
// also after a restart. What was acknowledged is on the disk and will be done, whoever
// leads, and also while nobody does. A firing, known by its job and instant, that was
// had before is acknowledged and not done again, as long as it is remembered: the
// newest Config.Remember of those that are done.
//
// Orders are of two kinds. A standing order has an interval and is acted on again and
// again until it is replaced. The others are done once. Both outlive the leader that
// gave them: when a higher token comes, what runs is ended, and begun again under that
// token if it is still wanted. So no act of a lower token follows one of a higher.
//
// The mark is kept by package filefence in the worker's directory, the orders in a
// SQLite database beside it.
package worker
