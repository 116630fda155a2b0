package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// leadByRedsync is what a careful user writes around a redsync mutex: it waits in a loop,
// extends at a third of the expiry, ends the work when the lock is lost or expired, and unlocks
// after the work has returned.
func leadByRedsync(ctx context.Context, c candidacy, work func(context.Context, win)) error {
	client := redis.NewClient(&redis.Options{Addr: c.Engine})
	defer func() { _ = client.Close() }()
	var options []redsync.Option
	expiry := 8 * time.Second // its default
	if ttl := c.lease(); ttl > 0 {
		expiry = ttl
		options = append(options, redsync.WithExpiry(expiry))
	}
	for ctx.Err() == nil {
		m := &extended{Mutex: redsync.New(goredis.NewPool(client)).NewMutex(c.Group, options...)}
		if m.LockContext(ctx) != nil {
			continue
		}
		m.until = m.Until()
		m.serve(ctx, expiry/3, work)
	}
	return nil
}

// extended is a mutex whose expiry can be read while it is extended.
type extended struct {
	*redsync.Mutex

	mu    sync.Mutex
	until time.Time
}

func (m *extended) valid() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Before(m.until)
}

func (m *extended) serve(ctx context.Context, every time.Duration, work func(context.Context, win)) {
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan struct{})
	var extending sync.WaitGroup
	extending.Go(func() {
		defer cancel()
		for m.valid() {
			select {
			case <-over:
				return
			case <-time.After(every):
			}
			m.extend(context.WithoutCancel(ctx), every)
		}
	})
	work(wctx, win{believes: m.valid, said: m.Value()})
	close(over)
	extending.Wait()
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), every)
	defer stop()
	_, _ = m.UnlockContext(ctx)
}

// extend ends belief when Redis says that the lock is not ours. Without an answer belief ends at
// the expiry.
func (m *extended) extend(ctx context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	ok, err := m.ExtendContext(ctx)
	var taken *redsync.ErrTaken
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case ok:
		m.until = m.Until()
	case errors.As(err, &taken):
		m.until = time.Time{}
	}
}
