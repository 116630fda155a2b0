package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

const (
	// watchFor is how long one request watches. The API server ends it, and shortly before it
	// tells the version that the next one goes on from, so that it misses nothing. A watch
	// that does not end was cut off.
	watchFor = 10 * time.Second
	// silentFor is how long after that a watch may be silent.
	silentFor = 3 * time.Second
	// giveUpAfter is how long a watch goes on without an answer before it ends.
	giveUpAfter = 10 * time.Second
)

var (
	errStopped = errors.New("kubernetes: nobody reads the watch any more")
	errSilent  = errors.New("kubernetes: the watch fell silent")
)

// Watch implements kv.Driver with watches of the API server, one after the other.
func (d *driver) Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[kv.Change, error] {
	return func(yield func(kv.Change, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(d.ctx, cancel)()
		w := &watch{d: d, prefixes: prefixes, ticker: time.NewTicker(max(tick, time.Millisecond)), heard: time.Now()}
		defer w.ticker.Stop()
		w.yield = func(c kv.Change) error {
			if !yield(c, nil) {
				return errStopped
			}
			return nil
		}
		for {
			err := w.run(ctx)
			switch {
			case errors.Is(err, errStopped):
				return
			case ctx.Err() != nil:
				yield(kv.Change{}, context.Cause(ctx))
				return
			case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
				w.version = "" // what happened meanwhile is no longer known
			case err != nil && (store.Permanent(err) || time.Since(w.heard) > giveUpAfter):
				yield(kv.Change{}, fmt.Errorf("kubernetes: the watch ended: %w", err))
				return
			}
			if err != nil {
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		}
	}
}

type watch struct {
	d        *driver
	prefixes []string
	ticker   *time.Ticker
	version  string // known so far. "": nothing is
	heard    time.Time
	yield    func(kv.Change) error
}

// run yields what one request tells, until it ends. nil: it ended in time.
func (w *watch) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(defaultCall, cancel)
	defer silent.Stop()
	o := meta.ListOptions{LabelSelector: w.d.selector(w.prefixes...) + ",!" + quietLabel}
	gap := w.version == ""
	if gap {
		o.Limit = 1
		leases, err := w.d.list(ctx, o)
		if err != nil {
			return err
		}
		w.version, o.Limit = leases.ResourceVersion, 0
	}
	o.Watch, o.AllowWatchBookmarks, o.ResourceVersion, o.TimeoutSeconds = true, true, w.version, new(int64(watchFor/time.Second))
	s, err := w.d.of(w.d.rest.Get()).VersionedParams(&o, w.d.params).Watch(ctx)
	if err != nil {
		return w.d.explain("watch", err)
	}
	defer s.Stop()
	silent.Reset(watchFor + silentFor)
	w.heard = time.Now()
	if gap {
		if err := w.yield(kv.Change{}); err != nil {
			return err
		}
	}
	for {
		select {
		case e, ok := <-s.ResultChan():
			if ctx.Err() != nil {
				return errSilent
			}
			if !ok {
				return nil
			}
			if err := w.event(e); err != nil {
				return err
			}
		case <-w.ticker.C:
			if err := w.yield(kv.Change{Tick: true}); err != nil {
				return err
			}
		}
	}
}

func (w *watch) event(e apiwatch.Event) error {
	l, ok := e.Object.(*coordination.Lease)
	if !ok {
		return apierrors.FromObject(e.Object)
	}
	w.version, w.heard = l.ResourceVersion, time.Now()
	key := w.d.key(l)
	if e.Type == apiwatch.Bookmark || !slices.ContainsFunc(w.prefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
		return nil
	}
	return w.yield(kv.Change{Key: key})
}
