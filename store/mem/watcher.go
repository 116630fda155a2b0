package mem

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

// watcher gathers the names of groups that changed, each once however often it
// did, so a slow reader costs one name per group. Its fields are guarded by the
// store's mutex.
type watcher struct {
	scope  lease.Scope
	dirty  []string
	noted  map[string]struct{}
	broken error
	wake   chan struct{} // buffered by one: something is dirty or broken
}

func (w *watcher) mark(name string) {
	if _, ok := w.noted[name]; ok || !w.scope.Covers(name) {
		return
	}
	w.noted[name] = struct{}{}
	w.dirty = append(w.dirty, name)
	w.rouse()
}

func (w *watcher) rouse() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take hands over what changed.
func (w *watcher) take() []string {
	names := w.dirty
	w.dirty = nil
	clear(w.noted)
	return names
}

func (s *Store) breakWatches(err error) {
	for w := range s.watchers {
		w.broken = err
		w.rouse()
	}
}

// watch reads each view when it is yielded, not when it changed: what a slow
// reader gets is late but never old.
func (s *Store) watch(ctx context.Context, scope lease.Scope) iter.Seq2[lease.View, error] {
	return func(yield func(lease.View, error) bool) {
		w := &watcher{scope: slices.Clone(scope), noted: make(map[string]struct{}), wake: make(chan struct{}, 1)}
		present, err := call(ctx, s, func(clock.Instant) ([]string, error) {
			if err := scope.Validate(); err != nil {
				return nil, err
			}
			s.watchers[w] = struct{}{}
			var names []string
			for _, name := range s.state.sortedNames() {
				if scope.Covers(name) {
					names = append(names, name)
				}
			}
			return names, nil
		})
		if err != nil {
			yield(lease.View{}, err)
			return
		}
		defer func() {
			s.mu.Lock()
			delete(s.watchers, w)
			s.mu.Unlock()
		}()
		if !s.yieldAll(ctx, w, present, yield) || !yield(lease.View{}, nil) {
			return
		}
		for {
			select {
			case <-w.wake:
			case <-ctx.Done():
				yield(lease.View{}, fmt.Errorf("mem: %w", ctx.Err()))
				return
			}
			s.mu.Lock()
			names := w.take()
			s.mu.Unlock()
			if !s.yieldAll(ctx, w, names, yield) {
				return
			}
		}
	}
}

// yieldAll yields the present views, or the error that ends the watch, and
// reports whether to go on.
func (s *Store) yieldAll(ctx context.Context, w *watcher, names []string, yield func(lease.View, error) bool) bool {
	for i := 0; ; i++ {
		v, err := call(ctx, s, func(now clock.Instant) (lease.View, error) {
			if w.broken != nil || i == len(names) {
				return lease.View{}, w.broken
			}
			return s.state.Read(now, names[i])
		})
		if err != nil {
			yield(lease.View{}, err)
			return false
		}
		if i == len(names) {
			return true
		}
		if !yield(v, nil) {
			return false
		}
	}
}
