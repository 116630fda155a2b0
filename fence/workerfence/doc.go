// Package workerfence fences a worker that takes orders from a leader: an order is
// accepted if and only if its token is not below the highest that the worker has
// seen.
//
// What is not guaranteed: what a handler does elsewhere is not fenced by its worker;
// it passes the stamp on to the sinks that it writes to. An order is done at most
// once per delivery and not once for all: who repeats one makes the handler
// idempotent. A handler that does not stop when its context ends holds the next
// leader up. Two processes that share a mark refuse stale orders alike, but do not
// end each other's running ones: run one process per mark.
//
// The mark is stored before an order is acted on, by a [fence.Sealer] that keeps
// it, such as a *filefence.Dir: what was refused before a restart is refused after
// it. When a higher token comes, first its mark is stored, so that no lower order
// is accepted any more; then the contexts of running orders with lower tokens end,
// with an [*InterruptedError] as their cause; and only when those have returned is
// the new order acted on. So no act of a lower token follows one of a higher.
//
//	dir, err := filefence.Open("/var/lib/worker")
//	…
//	worker := workerfence.New(dir, func(ctx context.Context, s fence.Stamp, order []byte) error { … })
//	err = worker.Do(ctx, stamp, order)
package workerfence
