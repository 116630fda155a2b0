// Package workerfence fences a worker that takes orders from a leader: it accepts an order if
// and only if the token is not below the highest that the worker has seen.
//
//	dir, err := filefence.Open("/var/lib/worker")
//	…
//	worker := workerfence.New(dir, func(ctx context.Context, s fence.Stamp, order []byte) error { … })
//	err = worker.Do(ctx, stamp, order)
//
// # Limitations
//
// The worker does not fence what a handler does elsewhere: the handler must pass the stamp to
// the sinks that it writes to. An order is executed at most once per delivery, not once in
// total: if orders are repeated, make the handler idempotent. A handler that does not stop when
// its context ends delays the next leader. Two processes that share a mark both refuse stale
// orders, but do not interrupt each other's running ones: run one process per mark.
//
// # How it works
//
// The mark is stored before an order is executed, by a [fence.Sealer] such as a
// *filefence.Dir. So what was refused before a restart is refused after it. When a higher
// token arrives, the worker first stores its mark, so that no lower order is accepted; then it
// ends the contexts of running orders with lower tokens, with an [*InterruptedError] as their
// cause; and executes the new order after those have returned. So no effect of a lower token
// follows one of a higher token.
package workerfence
