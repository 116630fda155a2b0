package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/filefence"
	"github.com/tenurehq/tenure/fence/workerfence"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/wait"
	"github.com/tenurehq/tenure/server/httpapi"
)

// worker is a running worker.
type worker struct {
	cfg     Config
	dir     *filefence.Dir
	store   *fileStore
	fence   *workerfence.Worker
	metrics *metrics
	counts  counts
	// arrived wakes feed; buffered by one.
	arrived chan struct{}
	// finished are firings that were run and are not recorded as done yet.
	finished chan done

	mu sync.Mutex
	// current is the stamp with the highest token. All orders run under it.
	current  fence.Stamp
	standing map[string]*standing
	waiting  int // accepted and not done
	accepted uint64
	refused  uint64
	done     uint64
	failed   uint64
	dup      uint64
	cut      uint64 // interrupted by a higher token

	// commands is held while standing orders are changed on disk and in memory.
	commands sync.Mutex
	orders   sync.WaitGroup
}

// Run runs a worker until ctx ends. Then it stops the running orders and returns. It calls ready
// once it listens.
func Run(ctx context.Context, cfg Config, ready func(addr string)) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg = cfg.withDefaults()
	dir, err := filefence.Open(cfg.Dir)
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	s, err := openStore(ctx, cfg.Dir, cfg.Remember)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	w := &worker{
		cfg: cfg, dir: dir, store: s, arrived: make(chan struct{}, 1), finished: make(chan done, cfg.Running),
		standing: make(map[string]*standing), counts: counts{by: make(map[string]uint64)},
	}
	w.fence = workerfence.New(dir, w.handle)
	w.metrics = newMetrics(w)
	if err := w.restore(ctx); err != nil {
		return err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("worker: listen: %w", err)
	}
	return w.serve(ctx, ln, ready)
}

// restore reads the state from before the restart.
func (w *worker) restore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	mark, err := w.dir.Mark(ctx)
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	w.current = fence.Stamp{Deployment: mark.Deployment, Group: mark.Group, Token: mark.Token}
	if w.waiting, err = w.store.count(ctx); err != nil {
		return fmt.Errorf("worker: read the orders: %w", err)
	}
	return nil
}

func (w *worker) serve(ctx context.Context, ln net.Listener, ready func(addr string)) error {
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wait sync.WaitGroup
	if err := w.command(work); err != nil {
		return errors.Join(err, ln.Close())
	}
	feed := make(chan accepted)
	wait.Go(func() { w.feed(work, feed) })
	for range w.cfg.Running {
		wait.Go(func() { w.runner(work, feed) })
	}
	stored := make(chan struct{})
	go func() {
		defer close(stored)
		w.finish(ctx)
	}()
	if ready != nil {
		ready(ln.Addr().String())
	}
	err := httpapi.Serve(ctx, ln, httpapi.OnlyHosts(w.handler(work), append(w.cfg.Hosts, w.cfg.Listen)...), w.cfg.HTTP, w.cfg.Log)
	stop(errors.New("the worker stops"))
	w.stopStanding()
	wait.Wait()
	close(w.finished)
	<-stored
	return err
}

// raise makes a stamp the current one, unless the current token is higher.
func (w *worker) raise(s fence.Stamp) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.Token > w.current.Token {
		w.current = fence.Stamp{Deployment: s.Deployment, Group: s.Group, Token: s.Token}
	}
}

func (w *worker) stamp() fence.Stamp {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current
}

// accept accepts orders if their stamp is admitted: when it returns they are on disk. The check
// and the write are one step under the lock of the directory.
func (w *worker) accept(ctx, work context.Context, s fence.Stamp, o api.Orders) (Accepted, error) {
	if err := w.fence.Seal(ctx, s); err != nil {
		return Accepted{}, fmt.Errorf("%w: %w", errNotStored, err)
	}
	w.raise(s)
	if err := validate(o, math.MaxInt); err != nil {
		return Accepted{}, err
	}
	if len(o.Orders) == 0 && !o.Replace {
		return Accepted{}, nil
	}
	w.commands.Lock()
	defer w.commands.Unlock()
	w.mu.Lock()
	room := w.cfg.Waiting - w.waiting
	w.mu.Unlock()
	var fresh int
	err := w.dir.Do(ctx, s, func(*os.Root) (err error) {
		fresh, err = w.store.accept(ctx, o, room, w.cfg.Standing)
		return err
	})
	if err != nil {
		return Accepted{}, err
	}
	once, commanded := 0, o.Replace
	for _, order := range o.Orders {
		if order.EveryMS == 0 {
			once++
		} else {
			commanded = true
		}
	}
	a := Accepted{Accepted: len(o.Orders) - once + fresh, Duplicates: once - fresh}
	w.mu.Lock()
	w.waiting += fresh
	w.accepted += uint64(a.Accepted)
	w.dup += uint64(a.Duplicates)
	w.mu.Unlock()
	w.metrics.orders.WithLabelValues("accepted").Add(float64(a.Accepted))
	w.metrics.orders.WithLabelValues("duplicate").Add(float64(a.Duplicates))
	wait.Signal(w.arrived)
	if commanded {
		// The orders are on disk, so they are accepted: a restart would find them.
		if err := w.command(work); err != nil {
			w.cfg.Log.Error("cannot read the standing orders that were just stored", "error", err)
		}
	}
	return a, nil
}

// feed hands out waiting firings in the order in which they arrived.
func (w *worker) feed(ctx context.Context, to chan<- accepted) {
	const atOnce = 100
	for last := int64(0); ctx.Err() == nil; {
		all, err := w.store.waiting(ctx, last, atOnce)
		if err != nil && ctx.Err() == nil {
			w.cfg.Log.Error("cannot read the orders, trying again", "error", err)
		}
		for _, a := range all {
			select {
			case to <- a:
				last = a.n
			case <-ctx.Done():
				return
			}
		}
		if len(all) == atOnce {
			continue
		}
		pause := time.Hour
		if err != nil {
			pause = time.Second
		}
		select {
		case <-ctx.Done():
		case <-w.arrived:
		case <-time.After(pause):
		}
	}
}

func (w *worker) runner(ctx context.Context, from <-chan accepted) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-from:
			err := w.run(ctx, []byte(a.body), "once")
			if ctx.Err() != nil {
				return // it is done after a restart
			}
			d := done{n: a.n}
			if err != nil {
				const most = 200
				d.failed = err.Error()
				d.failed = d.failed[:min(len(d.failed), most)]
			}
			w.finished <- d
		}
	}
}

// run runs an order under the current stamp, and again under a higher one if that arrives
// meanwhile.
func (w *worker) run(ctx context.Context, order []byte, kind string) error {
	for {
		err := w.fence.Do(ctx, w.stamp(), order)
		var stale *fence.StaleError
		var cut *workerfence.InterruptedError
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &cut):
			w.mu.Lock()
			w.cut++
			w.mu.Unlock()
			w.metrics.runs.WithLabelValues(kind, "interrupted").Inc()
			w.raise(cut.By)
			continue
		case errors.As(err, &stale):
			w.raise(fence.Stamp{Deployment: stale.Mark.Deployment, Group: stale.Mark.Group, Token: stale.Mark.Token})
			continue
		case err == nil:
			w.metrics.runs.WithLabelValues(kind, "ok").Inc()
		default:
			w.metrics.runs.WithLabelValues(kind, "failed").Inc()
		}
		return err
	}
}

// handle is called by workerfence.
func (w *worker) handle(ctx context.Context, _ fence.Stamp, order []byte) error {
	var o api.Order
	if err := json.Unmarshal(order, &o); err != nil {
		return err
	}
	w.metrics.running.Inc()
	defer w.metrics.running.Dec()
	return w.act(ctx, o)
}

// finish records finished firings, many at once.
func (w *worker) finish(ctx context.Context) {
	const atOnce = 200
	for first := range w.finished {
		batch := []done{first}
	gather:
		for len(batch) < atOnce {
			select {
			case d, open := <-w.finished:
				if !open {
					break gather
				}
				batch = append(batch, d)
			default:
				break gather
			}
		}
		failed := 0
		for _, d := range batch {
			if d.failed != "" {
				failed++
			}
		}
		if err := w.store.finish(ctx, batch); err != nil {
			// They are done again after a restart, not before.
			w.cfg.Log.Error("cannot record that orders are done", "orders", len(batch), "error", err)
		}
		w.mu.Lock()
		w.waiting -= len(batch)
		w.done += uint64(len(batch))
		w.failed += uint64(failed)
		w.mu.Unlock()
	}
}
