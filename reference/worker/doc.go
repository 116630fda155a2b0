// Package worker is a process that acts on the orders of a fleet's leader, and refuses those of
// stale leaders.
//
// Limitations: an order may be acted on more than once. An order that runs when the worker dies,
// or when a new leader appears, is run again. What a handler does elsewhere is not fenced by the
// worker: see package workerfence.
//
// Guarantees: an order with a token below the highest that the worker has ever seen is refused,
// also after a restart. An acknowledged order is on disk and will be done, whoever leads, and
// also while nobody does. A firing, identified by its job and instant, that the worker has had
// before is acknowledged and not done again, as long as it is among the newest Config.Remember
// that are finished.
//
// There are two kinds of orders. A standing order has an interval and is acted on again and
// again until it is replaced. The others are done once. Both outlive the leader that sent them:
// when a higher token arrives, running orders are interrupted and run again under that token if
// they are still wanted. So no act of a lower token follows one of a higher token.
//
// Package filefence keeps the mark in the worker's directory. A SQLite database beside it keeps
// the orders.
package worker
