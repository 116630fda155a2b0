package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure/store/kv"
)

const (
	// probeEvery is how often a watch checks that its member is alive. After quietFor without a
	// message it requests one, and after silentFor it moves to another member. A member's
	// answers to other calls count too, so candidates with the default timing need no requests.
	probeEvery = time.Second
	quietFor   = 5 * time.Second / 2
	silentFor  = 4 * time.Second
	// giveUpAfter is how long a watch continues without any member before it ends.
	giveUpAfter = 10 * time.Second
)

var (
	errSilent = errors.New("etcd: the watch fell silent")
	errBack   = errors.New("etcd: the cluster went back behind what it had told us")
)

// Watch implements kv.Driver with one etcd watch over one range of keys, so changes arrive in
// order. It moves to another member when one falls silent.
func (d *Driver) Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[kv.Change, error] {
	return kv.Follow{Life: d.ctx, Tick: tick, Prefixes: prefixes}.Watch(ctx, func(f *kv.Follow) func(context.Context) error {
		return (&watch{Follow: f, d: d}).run
	})
}

type watch struct {
	*kv.Follow
	d        *Driver
	revision int64 // the newest that is known
}

// run watches until no member answers, or until changes that it missed were compacted.
func (w *watch) run(ctx context.Context) error {
	s, err := w.listen(ctx)
	if err == nil {
		w.revision = max(w.revision, s.revision)
		err = w.Gap()
	}
	if err == nil {
		err = w.follow(ctx, s)
	}
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil // start again
	}
	return err
}

// stream is a watch at one member.
type stream struct {
	client   *clientv3.Client
	events   clientv3.WatchChan
	revision int64
	close    context.CancelFunc
}

// stream starts a watch that lasts as long as ctx. The member must confirm it before call ends:
// the client itself would wait forever.
func (w *watch) stream(ctx, call context.Context, c *clientv3.Client, opts ...clientv3.OpOption) (*stream, error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	giveUp := context.AfterFunc(call, cancel)
	// The keys of attempts sort before the watched prefixes, so etcd does not send their events.
	end := clientv3.GetPrefixRangeEnd(w.d.key(slices.Max(w.Prefixes)))
	events := c.Watch(ctx, w.d.key(slices.Min(w.Prefixes)), append(opts, clientv3.WithRange(end), clientv3.WithFragment())...)
	if !giveUp() {
		cancel()
		return nil, call.Err()
	}
	return &stream{client: c, events: events, close: cancel}, nil
}

// listen starts a watch at the current revision.
func (w *watch) listen(ctx context.Context) (*stream, error) {
	var s *stream
	err := w.d.each(ctx, "watch", func(call context.Context, c *clientv3.Client) (err error) {
		if s, err = w.stream(ctx, call, c, clientv3.WithCreatedNotify()); err != nil {
			return err
		}
		err = errSilent
		select {
		case r := <-s.events:
			if r.Created && r.Err() == nil {
				s.revision = r.Header.Revision
				return nil
			}
			err = cmp.Or(r.Err(), err)
		case <-call.Done():
			err = call.Err()
		}
		s.close()
		return err
	})
	return s, err
}

// follow yields changes, from one member after the other.
func (w *watch) follow(ctx context.Context, s *stream) error {
	w.d.mu.Lock()
	at := w.d.preferred
	w.d.mu.Unlock()
	w.Heard()
	var err error
	for {
		if s != nil {
			err = w.hear(ctx, s)
			s.close()
		}
		m := w.d.members[at%len(w.d.members)]
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, kv.ErrUnread), errors.Is(err, errBack), errors.Is(err, rpctypes.ErrCompacted):
			return err
		case w.Quiet() > giveUpAfter:
			return fmt.Errorf("etcd: watch: no member answered for %v, last %s: %w", giveUpAfter, m.endpoint, err)
		}
		kv.Pause(ctx, 50*time.Millisecond)
		at++
		s = nil
		var c *clientv3.Client
		if c, err = w.d.members[at%len(w.d.members)].connect(ctx); err != nil {
			continue
		}
		// A member whose data went back would be silent until it reaches the old revision, and
		// then send other changes.
		if _, err = w.now(ctx, c); err == nil {
			call, done := context.WithTimeout(ctx, probeEvery)
			s, err = w.stream(ctx, call, c, clientv3.WithRev(w.revision+1))
			done()
		}
	}
}

// hear yields the changes of one member until it falls silent.
func (w *watch) hear(ctx context.Context, s *stream) error {
	probe := time.NewTicker(probeEvery)
	defer probe.Stop()
	here := time.Now()
	for {
		select {
		case r, ok := <-s.events:
			if !ok {
				return errSilent
			}
			if err := r.Err(); err != nil {
				if r.CompactRevision != 0 {
					return rpctypes.ErrCompacted
				}
				return err
			}
			here = time.Now()
			w.Heard()
			if err := w.apply(r); err != nil {
				return err
			}
		case <-w.Ticks:
			if err := w.Ticked(); err != nil {
				return err
			}
		case <-probe.C:
			if at := w.d.missedNothing(s.client, w.revision); at.After(here) {
				here = at
				w.Heard()
			}
			if time.Since(here) < quietFor {
				continue
			}
			if time.Since(here) > silentFor {
				// etcd sends nothing to a watch that waits for a future revision. So the member
				// is alive if its revision is not newer than ours.
				revision, err := w.now(ctx, s.client)
				if err == nil && revision > w.revision {
					err = errSilent
				}
				if err != nil {
					return err
				}
				here = time.Now()
				w.Heard()
			}
			if err := askProgress(ctx, s.client); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *watch) apply(r clientv3.WatchResponse) error {
	for _, e := range r.Events {
		key := strings.TrimPrefix(string(e.Kv.Key), w.d.cfg.Prefix+"/")
		if !w.Covers(key) {
			continue
		}
		i := kv.Item{Key: key}
		if e.Type == clientv3.EventTypePut {
			i = w.d.item(e.Kv)
		}
		c := kv.Change{Key: key, Item: &i}
		if w.d.cfg.Observed {
			c.Item = nil
		}
		if err := w.Tell(c); err != nil {
			return err
		}
	}
	if len(r.Events) > 0 {
		w.revision = max(w.revision, r.Events[len(r.Events)-1].Kv.ModRevision)
	}
	if r.IsProgressNotify() {
		w.revision = max(w.revision, r.Header.Revision)
	}
	return nil
}

// askProgress requests a progress notification, which shows that the member is alive.
func askProgress(ctx context.Context, c *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), probeEvery)
	defer cancel()
	if err := c.RequestProgress(ctx); err != nil {
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	return nil
}

// now returns the cluster's revision, and errBack if it is below the one we know.
func (w *watch) now(ctx context.Context, c *clientv3.Client) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, probeEvery)
	defer cancel()
	r, err := c.Get(ctx, w.d.key("meta"), clientv3.WithCountOnly())
	switch {
	case err != nil:
		return 0, fmt.Errorf("%w: %w", errSilent, err)
	case r.Header.Revision < w.revision:
		return 0, errBack
	}
	return r.Header.Revision, nil
}
