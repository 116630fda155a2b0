package kubernetes

import (
	"context"
	"errors"
	"iter"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/tenurehq/tenure/store/kv"
)

const (
	// watchFor is how long one request watches. The API server ends it, and shortly before sends
	// the version from which the next request continues, so that no change is missed. If the
	// request does not end, the connection is dead.
	watchFor = 10 * time.Second
	// listFor bounds the start of a watch.
	listFor = 5 * time.Second
	// silentFor is how much longer than watchFor a request may take.
	silentFor = 3 * time.Second
	// giveUpAfter is how long a watch continues without an answer before it ends.
	giveUpAfter = 10 * time.Second
)

var errSilent = errors.New("kubernetes: the watch fell silent")

// Watch implements kv.Driver with watches of the API server, one after the other.
func (d *driver) Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[kv.Change, error] {
	return kv.Follow{Life: d.ctx, Tick: tick, Prefixes: prefixes, Retry: 100 * time.Millisecond, GiveUp: giveUpAfter}.Watch(ctx, func(f *kv.Follow) func(context.Context) error {
		w := &watch{Follow: f, d: d}
		return func(ctx context.Context) error {
			err := w.run(ctx)
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				w.version = "" // the API server no longer has the changes since this version
				w.Heard()
			}
			return err
		}
	})
}

type watch struct {
	*kv.Follow
	d       *driver
	version string // the newest that is known; "": none
}

// run yields the changes of one request until it ends. It returns nil if the request ended in time.
func (w *watch) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(listFor, cancel)
	defer silent.Stop()
	o := meta.ListOptions{LabelSelector: w.d.selector(w.Prefixes...) + ",!" + quietLabel}
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
	w.Heard()
	if gap {
		if err := w.Gap(); err != nil {
			return err
		}
	}
	for {
		var err error
		select {
		case e, ok := <-s.ResultChan():
			if ctx.Err() != nil {
				return errSilent
			}
			if !ok {
				return nil
			}
			err = w.event(e)
		case <-w.Ticks:
			err = w.Ticked()
		}
		if err != nil {
			return err
		}
	}
}

func (w *watch) event(e apiwatch.Event) error {
	l, ok := e.Object.(*coordination.Lease)
	if !ok {
		return apierrors.FromObject(e.Object)
	}
	w.Heard()
	if w.version = l.ResourceVersion; e.Type == apiwatch.Bookmark {
		return nil
	}
	return w.Changed(w.d.key(l))
}
