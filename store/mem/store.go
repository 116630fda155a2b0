package mem

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store/kv"
)

// Options configure a store. The zero value is complete.
type Options struct {
	// Deployment names the store, for stamps. Default "mem".
	Deployment string
	// MinTTL and MaxTTL bound the TTL of sessions. Default 10 ms and 24 h.
	MinTTL, MaxTTL time.Duration
	// Keys bounds the keys of a transaction. Default 512. With 1 it behaves like Kubernetes.
	Keys int
	// Observed: the engine does not expire sessions by itself.
	Observed bool
	// Hints: watches deliver hints instead of values.
	Hints bool
	// Clock measures expiry. Default clock.System().
	Clock clock.Clock
	// Plant has planted bugs, for tests.
	Plant plant.Set
}

func (o Options) withDefaults() Options {
	if o.Deployment == "" {
		o.Deployment = "mem"
	}
	if o.MinTTL == 0 {
		o.MinTTL = 10 * time.Millisecond
	}
	if o.MaxTTL == 0 {
		o.MaxTTL = 24 * time.Hour
	}
	if o.Keys == 0 {
		o.Keys = 512
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	return o
}

// Caps returns the capabilities of a driver with the options.
func (o Options) Caps() kv.Caps {
	o = o.withDefaults()
	return kv.Caps{
		MinTTL: o.MinTTL, MaxTTL: o.MaxTTL, Keys: o.Keys, Native: !o.Observed, Ordered: !o.Hints && !o.Observed && o.Keys > 1,
		Loses: "it loses everything when its process ends",
	}
}

// Store is a store.Store for one process: a kv.Store over its own Driver.
type Store struct {
	*kv.Store
	Driver *Driver
}

// New returns an empty store. The caller must call Close.
func New(o Options) *Store {
	d := NewDriver(o)
	s, err := d.Open()
	if err != nil {
		panic("mem: " + err.Error()) // impossible: memory does not fail
	}
	return &Store{s, d}
}

// Close ends the store and its engine.
func (s *Store) Close() {
	s.Driver.Close()
	s.Store.Close()
}

// Driver shares one Engine among the stores of a process. Its methods are safe for
// concurrent use.
type Driver struct {
	options Options
	timer   clock.Timer
	stop    chan struct{}
	done    chan struct{}

	mu       sync.Mutex
	engine   *Engine
	armed    clock.Instant
	watchers map[*watcher]struct{}
	down     bool
}

var (
	_ kv.Driver = (*Driver)(nil)
	_ kv.Leaser = (*Driver)(nil)
)

// NewDriver returns a driver over an empty engine.
func NewDriver(o Options) *Driver {
	o = o.withDefaults()
	d := &Driver{
		options: o, timer: o.Clock.NewTimer(), stop: make(chan struct{}), done: make(chan struct{}),
		engine: NewEngine(o.Plant), armed: clock.Never, watchers: map[*watcher]struct{}{},
	}
	go d.expire()
	return d
}

// Open returns another client of the engine.
func (d *Driver) Open() (*kv.Store, error) {
	return kv.New(context.Background(), d, kv.Config{Deployment: d.options.Deployment, Clock: d.options.Clock}.Planted(d.options.Plant))
}

func (d *Driver) expire() {
	defer close(d.done)
	for {
		select {
		case <-d.timer.C():
		case <-d.stop:
			return
		}
		d.mu.Lock()
		d.armed = clock.Never
		d.engine.Expire(d.options.Clock.Now())
		d.publish()
		d.mu.Unlock()
	}
}

// publish sends the changes to the watchers, and sets the timer for the next expiry. d.mu is
// held.
func (d *Driver) publish() {
	for _, c := range d.engine.Changed() {
		for w := range d.watchers {
			w.add(c)
		}
	}
	if next := d.engine.NextExpiry(); next < d.armed {
		d.armed = next
		d.timer.Set(next)
	}
}

var errClosed = errors.New("mem: the store is closed")

// with runs f on the engine.
func with[T any](ctx context.Context, d *Driver, f func(clock.Instant) (T, error)) (T, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, fmt.Errorf("mem: %w", err)
	}
	if d.down {
		return zero, errClosed
	}
	defer d.publish()
	return f(d.options.Clock.Now())
}

// Do runs f on the engine, for tests.
func (d *Driver) Do(f func(now clock.Instant, e *Engine)) {
	_, _ = with(context.Background(), d, func(now clock.Instant) (struct{}, error) {
		f(now, d.engine)
		return struct{}{}, nil
	})
}

// Close ends the engine. Watches and later calls fail.
func (d *Driver) Close() {
	d.mu.Lock()
	first := !d.down
	d.down = true
	for w := range d.watchers {
		w.err = errClosed
		w.rouse()
	}
	d.mu.Unlock()
	if first {
		close(d.stop)
		<-d.done
		d.timer.Stop()
	}
}

// Caps implements kv.Driver.
func (d *Driver) Caps() kv.Caps { return d.options.Caps() }

// Commit implements kv.Driver.
func (d *Driver) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	return with(ctx, d, func(now clock.Instant) (kv.Result, error) { return d.engine.Commit(now, t), nil })
}

// List implements kv.Driver.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) ([]kv.Item, error) {
	return with(ctx, d, func(now clock.Instant) ([]kv.Item, error) { return d.engine.List(now, prefix, after, limit), nil })
}

// Incarnation implements kv.Driver.
func (d *Driver) Incarnation(ctx context.Context) (kv.Incarnation, error) {
	return with(ctx, d, func(clock.Instant) (kv.Incarnation, error) { return d.engine.incarnation(), nil })
}

// Grant implements kv.Leaser.
func (d *Driver) Grant(ctx context.Context, want string, ttl time.Duration) (string, time.Duration, error) {
	granted, err := with(ctx, d, func(now clock.Instant) (time.Duration, error) { return d.engine.Grant(now, want, ttl), nil })
	return want, granted, err
}

// Renew implements kv.Leaser.
func (d *Driver) Renew(ctx context.Context, id string, read []string) (time.Duration, kv.Result, error) {
	var r kv.Result
	ttl, err := with(ctx, d, func(now clock.Instant) (time.Duration, error) {
		r = d.engine.Commit(now, kv.Txn{Read: read})
		return d.engine.Renew(now, id)
	})
	return ttl, r, err
}

// Revoke implements kv.Leaser.
func (d *Driver) Revoke(ctx context.Context, id string) error {
	_, err := with(ctx, d, func(now clock.Instant) (struct{}, error) {
		d.engine.Revoke(now, id)
		return struct{}{}, nil
	})
	return err
}

// watcher queues the changes that a watch has not yielded yet.
type watcher struct {
	prefixes []string
	hints    bool
	queue    []kv.Change
	err      error
	wake     chan struct{}
}

// maxQueue bounds the queue of a slow reader. Beyond it, the watch reports a gap.
const maxQueue = 1 << 14

func (w *watcher) add(c kv.Change) {
	if c.Key != "" && !slices.ContainsFunc(w.prefixes, func(p string) bool { return strings.HasPrefix(c.Key, p) }) {
		return
	}
	if w.hints {
		c.Item = nil
	}
	if len(w.queue) >= maxQueue {
		w.queue = append(w.queue[:0], kv.Change{})
		return
	}
	w.queue = append(w.queue, c)
	w.rouse()
}

func (w *watcher) rouse() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Watch implements kv.Driver.
func (d *Driver) Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[kv.Change, error] {
	return func(yield func(kv.Change, error) bool) {
		w := &watcher{prefixes: prefixes, hints: !d.Caps().Ordered, wake: make(chan struct{}, 1), queue: []kv.Change{{}}}
		d.mu.Lock()
		if d.down {
			w.err = errClosed
		}
		d.watchers[w] = struct{}{}
		d.mu.Unlock()
		defer func() {
			d.mu.Lock()
			delete(d.watchers, w)
			d.mu.Unlock()
		}()
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for {
			d.mu.Lock()
			changes, err := w.queue, w.err
			w.queue = nil
			d.mu.Unlock()
			for _, c := range changes {
				if !yield(c, nil) {
					return
				}
			}
			if err != nil {
				yield(kv.Change{}, err)
				return
			}
			select {
			case <-w.wake:
			case <-ticker.C:
				if !yield(kv.Change{Tick: true}, nil) {
					return
				}
			case <-ctx.Done():
				yield(kv.Change{}, context.Cause(ctx))
				return
			}
		}
	}
}
