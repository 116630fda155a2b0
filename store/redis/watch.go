package redis

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/tenurehq/tenure/store/kv"
)

const (
	// After quietFor without a message a watch sends a PING, and after silentFor it connects
	// again.
	quietFor  = 2 * time.Second
	silentFor = 5 * time.Second
	// giveUpAfter is how long a watch continues without a connection before it ends.
	giveUpAfter = 10 * time.Second
	redialAfter = 50 * time.Millisecond
)

var errMoved = errors.New("redis: another server answers now")

// Watch implements kv.Driver with a subscription. Redis does not keep messages, so each new
// subscription is a gap.
func (d *Driver) Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[kv.Change, error] {
	return kv.Follow{Life: d.ctx, Tick: tick, Prefixes: prefixes, Retry: redialAfter, GiveUp: giveUpAfter}.Watch(ctx, func(f *kv.Follow) func(context.Context) error {
		return func(ctx context.Context) error { return d.follow(ctx, f) }
	})
}

// follow yields the changes of one subscription until its connection is lost.
func (d *Driver) follow(ctx context.Context, f *kv.Follow) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	incarnation, _ := d.lastSeen()
	sub := d.client.Subscribe(ctx)
	messages, lost := make(chan any), make(chan error, 1)
	go func() { lost <- d.receive(ctx, sub, messages) }()
	defer func() {
		cancel()
		_ = sub.Close()
		<-lost
	}()
	probe := time.NewTicker(quietFor)
	defer probe.Stop()
	for {
		var err error
		select {
		case m := <-messages:
			f.Heard()
			err = message(f, m)
		case <-f.Ticks:
			err = f.Ticked()
		case <-probe.C:
			err = d.probe(ctx, f, sub)
		case err = <-lost:
			lost <- err
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		now, _ := d.lastSeen()
		if incarnation != "" && now != incarnation {
			return errMoved
		}
		incarnation = now
	}
}

// receive reads the subscription. It ends at a timeout, because a message may have been read in
// part.
func (d *Driver) receive(ctx context.Context, sub *goredis.PubSub, messages chan<- any) error {
	if err := sub.Subscribe(ctx, d.channel); err != nil {
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

// message yields the change in a message.
func message(f *kv.Follow, m any) error {
	switch m := m.(type) {
	case *goredis.Subscription:
		return f.Gap()
	case *goredis.Message:
		return f.Changed(strings.Split(m.Payload, "\n")...)
	}
	return nil
}

// probe sends a PING if the watch was quiet. It also finds out whether another server is the
// master by now, unless another call has just done so.
func (d *Driver) probe(ctx context.Context, f *kv.Follow, sub *goredis.PubSub) error {
	if f.Quiet() < quietFor {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, quietFor)
	defer cancel()
	if _, at := d.lastSeen(); time.Since(at) > quietFor {
		if _, err := d.Incarnation(ctx); err != nil {
			return err
		}
	}
	return sub.Ping(ctx)
}
