package kv

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/store"
)

// callTimeout bounds calls whose context has no deadline.
const callTimeout = 5 * time.Second

// Bounded gives a context a deadline if it has none: 5 s from now.
func Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, callTimeout)
}

// Pause waits until the time has passed or the context ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// Follow implements the Watch of a driver whose connection may be lost and made again.
type Follow struct {
	Life     context.Context // of the driver: the watch ends with it
	Tick     time.Duration
	Prefixes []string
	Retry    time.Duration // the pause after a lost connection
	// GiveUp is how long the engine may be silent before the watch ends.
	GiveUp time.Duration

	// Ticks delivers a value when the driver must call Ticked.
	Ticks  <-chan time.Time
	heard  time.Time
	yield  func(Change, error) bool
	unread bool // the reader has stopped
}

// ErrUnread ends a watch whose reader has stopped.
var ErrUnread = errors.New("kv: nobody reads the watch any more")

// Watch calls begin once, and then the follow function that begin returns, which yields changes
// through f. Whenever follow returns, Watch calls it again: at once after nil, after a pause if it
// failed. The watch ends if the error is permanent or the engine was silent for GiveUp.
func (f Follow) Watch(ctx context.Context, begin func(*Follow) (follow func(context.Context) error)) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(f.Life, cancel)()
		f := f
		f.heard, f.yield = time.Now(), yield
		if f.Tick > 0 {
			ticker := time.NewTicker(f.Tick)
			defer ticker.Stop()
			f.Ticks = ticker.C
		}
		follow := begin(&f)
		for {
			err := follow(ctx)
			switch {
			case f.unread: // whatever follow returns
				return
			case f.Life.Err() != nil:
				err = ErrClosed
			case ctx.Err() != nil:
				err = context.Cause(ctx)
			case err == nil:
				continue
			case !store.Permanent(err) && time.Since(f.heard) <= f.GiveUp:
				Pause(ctx, f.Retry)
				continue
			}
			yield(Change{}, err)
			return
		}
	}
}

// Heard notes that the engine has answered.
func (f *Follow) Heard() { f.heard = time.Now() }

// Quiet is how long ago the engine last answered.
func (f *Follow) Quiet() time.Duration { return time.Since(f.heard) }

// Tell yields a change. It fails if the reader has stopped: return the error.
func (f *Follow) Tell(c Change) error {
	if f.unread = f.unread || !f.yield(c, nil); f.unread {
		return ErrUnread
	}
	return nil
}

// Ticked yields a tick.
func (f *Follow) Ticked() error { return f.Tell(Change{Tick: true}) }

// Gap yields a change which says that anything may have changed.
func (f *Follow) Gap() error { return f.Tell(Change{}) }

// Changed yields a hint for each of the keys that is watched.
func (f *Follow) Changed(keys ...string) error {
	for _, key := range keys {
		if f.Covers(key) {
			if err := f.Tell(Change{Key: key}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Covers reports whether a key is watched.
func (f *Follow) Covers(key string) bool {
	return slices.ContainsFunc(f.Prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
}
