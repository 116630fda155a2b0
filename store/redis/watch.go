package redis

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/tenurehq/tenure/store/kv"
)

const (
	// quietFor is how long a watch waits for a message before it asks for a sign of life, and
	// silentFor how long before it connects again.
	quietFor  = 2 * time.Second
	silentFor = 5 * time.Second
	// giveUpAfter is how long a watch goes without a connection before it ends.
	giveUpAfter = 10 * time.Second
	redialAfter = 50 * time.Millisecond
)

var (
	errStopped = errors.New("redis: nobody reads the watch any more")
	errMoved   = errors.New("redis: another server answers now")
)

// Watch implements kv.Driver with a subscription. Redis does not keep messages, so each new
// subscription is a gap.
func (d *Driver) Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[kv.Change, error] {
	return func(yield func(kv.Change, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(d.ctx, cancel)()
		w := &watch{d: d, prefixes: prefixes, ticker: time.NewTicker(max(tick, time.Millisecond)), heard: time.Now(), yield: yield}
		defer w.ticker.Stop()
		for {
			err := w.follow(ctx)
			switch {
			case errors.Is(err, errStopped):
				return
			case ctx.Err() != nil:
				yield(kv.Change{}, context.Cause(ctx))
				return
			case time.Since(w.heard) > giveUpAfter:
				yield(kv.Change{}, fmt.Errorf("redis: watch: no connection for %v: %w", giveUpAfter, err))
				return
			}
			select {
			case <-time.After(redialAfter):
			case <-ctx.Done():
			}
		}
	}
}

type watch struct {
	d        *Driver
	prefixes []string
	ticker   *time.Ticker
	heard    time.Time // when the server last gave a sign of life
	yield    func(kv.Change, error) bool
}

// follow yields the changes of one subscription until its connection is lost.
func (w *watch) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	life, _ := w.d.lastSeen()
	sub := w.d.client.Subscribe(ctx)
	messages, lost := make(chan any), make(chan error, 1)
	go func() { lost <- w.receive(ctx, sub, messages) }()
	defer func() {
		cancel()
		_ = sub.Close()
		<-lost
	}()
	probe := time.NewTicker(quietFor)
	defer probe.Stop()
	for {
		var more bool
		select {
		case m := <-messages:
			w.heard = time.Now()
			more = w.message(m)
		case <-w.ticker.C:
			more = w.yield(kv.Change{Tick: true}, nil)
		case <-probe.C:
			more = true
			if err := w.probe(ctx, sub); err != nil {
				return err
			}
		case err := <-lost:
			lost <- err
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		if !more {
			return errStopped
		}
		now, _ := w.d.lastSeen()
		if life != "" && now != life {
			return errMoved
		}
		life = now
	}
}

// receive reads the subscription. A timeout is the end of the connection, because a message may
// have been read in part.
func (w *watch) receive(ctx context.Context, sub *goredis.PubSub, messages chan<- any) error {
	if err := sub.Subscribe(ctx, w.d.channel); err != nil {
		return explain("watch", err)
	}
	for {
		m, err := sub.ReceiveTimeout(ctx, silentFor)
		if err != nil {
			return explain("watch", err)
		}
		select {
		case messages <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// message yields what a message says.
func (w *watch) message(m any) bool {
	switch m := m.(type) {
	case *goredis.Subscription:
		return w.yield(kv.Change{}, nil)
	case *goredis.Message:
		for key := range strings.SplitSeq(m.Payload, "\n") {
			if slices.ContainsFunc(w.prefixes, func(p string) bool { return strings.HasPrefix(key, p) }) && !w.yield(kv.Change{Key: key}, nil) {
				return false
			}
		}
	}
	return true
}

// probe asks for a sign of life after a quiet time. It also finds out whether another server is
// the master by now; calls that were made anyway have done so.
func (w *watch) probe(ctx context.Context, sub *goredis.PubSub) error {
	if time.Since(w.heard) < quietFor {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, quietFor)
	defer cancel()
	if _, at := w.d.lastSeen(); time.Since(at) > quietFor {
		if _, err := w.d.Incarnation(ctx); err != nil {
			return err
		}
	}
	return sub.Ping(ctx)
}
