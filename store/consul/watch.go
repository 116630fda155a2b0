package consul

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

const (
	// blockFor is how long a blocking query waits for a change. Consul adds up to a sixteenth.
	blockFor = 10 * time.Second
	// silentFor is how long the answer may take before the query is tried at another address.
	silentFor = blockFor + blockFor/16 + 2*time.Second
	// giveUpAfter is how long a watch continues without any answer before it ends.
	giveUpAfter = 20 * time.Second
	// retryAfter is the pause after an answer that came too early, and after an error.
	retryAfter = 100 * time.Millisecond
	// manyChanges is the number of changes above which the watch reports a gap: reading
	// everything once is then cheaper than reading each key.
	manyChanges = 100
)

// Watch implements kv.Driver with one blocking query for each prefix. A query does not say what
// has changed, so the keys are listed again and compared.
//
// It does not watch beats, because the query would return at every keep-alive. The commit that
// ends a session deletes its beat and writes its other key, which is watched. If Consul deletes a
// beat because of a health check, candidates notice it when they read the beat, eight times in
// its TTL.
func (d *Driver) Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[kv.Change, error] {
	return kv.Follow{Life: d.ctx, Tick: tick}.Watch(ctx, func(f *kv.Follow) func(context.Context) error {
		return func(ctx context.Context) error { return d.follow(ctx, f, prefixes) }
	})
}

// follow watches the prefixes until one of them fails.
func (d *Driver) follow(ctx context.Context, f *kv.Follow, prefixes []string) error {
	ctx, cancel := context.WithCancel(ctx)
	changed := make(chan string)
	failed := make(chan error, len(prefixes))
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for _, p := range prefixes {
		if p == beatAt {
			continue
		}
		w := &watch{d: d, prefix: p, changed: changed}
		if err := w.compare(ctx); err != nil {
			return err
		}
		all.Go(func() { failed <- w.run(ctx) })
	}
	err := f.Gap()
	for err == nil {
		select {
		case key := <-changed:
			err = f.Tell(kv.Change{Key: key})
		case <-f.Ticks:
			err = f.Ticked()
		case err = <-failed:
		}
	}
	return err
}

// watch follows one prefix.
type watch struct {
	d       *Driver
	prefix  string
	changed chan<- string // receives the keys that have changed

	index uint64
	known map[string]uint64 // versions
	took  time.Duration     // how long the last listing took
}

// run waits for a change of the index, and then lists and compares the keys, again and again.
func (w *watch) run(ctx context.Context) error {
	heard := time.Now()
	for {
		asked := time.Now()
		index, err := w.wait(ctx)
		pause, answered := time.Duration(0), time.Now()
		switch {
		case err == nil && index != w.index:
			err = w.compare(ctx)
			pause = min(w.took, time.Second) // so that long listings do not overload Consul
		case err == nil && answered.Sub(asked) < blockFor/2:
			err = errEarly
		}
		if err != nil {
			pause = retryAfter
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil, errors.Is(err, errEarly):
			heard = time.Now()
		case store.Permanent(err), time.Since(heard) > giveUpAfter:
			return fmt.Errorf("consul: watch: %w", err)
		}
		kv.Pause(ctx, pause)
	}
}

// errEarly means that the query returned early without a change, as Consul may do.
var errEarly = errors.New("consul: nothing has changed")

// wait returns when the index of the prefix may have changed. The answer is short, because all
// names are equal up to the separator.
func (w *watch) wait(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, silentFor)
	defer cancel()
	last := len(w.prefix) - 1
	return w.d.below(ctx, w.prefix[:last], request{blocks: true, into: &[]string{}, query: url.Values{
		"keys": {""}, "separator": {w.prefix[last:]}, "index": {strconv.FormatUint(w.index, 10)}, "wait": {blockFor.String()},
	}})
}

// compare lists the keys and sends those that have changed, except for the first time.
func (w *watch) compare(ctx context.Context) error {
	var pairs []pair
	began := time.Now()
	index, err := w.d.below(ctx, w.prefix, request{query: url.Values{"recurse": {""}, "consistent": {""}}, into: &pairs})
	if err != nil {
		return err
	}
	now := make(map[string]uint64, len(pairs))
	var changed []string
	for _, p := range pairs {
		key := w.d.item(p).Key
		if now[key] = p.ModifyIndex; w.known[key] != p.ModifyIndex {
			changed = append(changed, key)
		}
	}
	for key := range w.known {
		if now[key] == 0 {
			changed = append(changed, key)
		}
	}
	first, back := w.index == 0, index < w.index
	w.known, w.index, w.took = now, index, time.Since(began)
	switch {
	case first:
		return nil
	case back || len(changed) > manyChanges:
		changed = []string{""}
	case len(changed) == 0:
		return errEarly // the index of a prefix without keys is that of all keys
	}
	for _, key := range changed {
		select {
		case w.changed <- key:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
