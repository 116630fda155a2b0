package kv_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// A watch goes on over lost connections, and ends when the engine is silent for too long, when the
// error is permanent, and with its driver and its context.
func TestFollow(t *testing.T) {
	lost := errors.New("the connection is lost")
	dead, kill := context.WithCancel(t.Context())
	kill()
	for name, c := range map[string]struct {
		ctx, life context.Context
		follow    func(n int, f *kv.Follow) error
		ends      error
		calls     int
		after     time.Duration
	}{
		"silent":    {follow: func(int, *kv.Follow) error { return lost }, ends: lost, calls: 12, after: 11 * time.Second},
		"heard":     {follow: func(n int, f *kv.Follow) error { hear(f, n < 5); return lost }, ends: lost, calls: 16, after: 15 * time.Second},
		"at once":   {follow: func(n int, _ *kv.Follow) error { return []error{nil, nil, store.ErrDenied}[n] }, ends: store.ErrDenied, calls: 3},
		"permanent": {follow: func(int, *kv.Follow) error { return store.ErrDenied }, ends: store.ErrDenied, calls: 1},
		"closed":    {life: dead, follow: func(int, *kv.Follow) error { return lost }, ends: kv.ErrClosed, calls: 1},
		"cancelled": {ctx: dead, follow: func(int, *kv.Follow) error { return lost }, ends: context.Canceled, calls: 1},
		"unread":    {follow: func(_ int, f *kv.Follow) error { return f.Changed("other/a", "record/stop") }, calls: 1},
		"unread, and another error": {follow: func(_ int, f *kv.Follow) error {
			return errors.Join(lost, errors.New(fmt.Sprint(f.Changed("record/stop"), f.Gap())))
		}, calls: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, life := c.ctx, c.life
				if ctx == nil {
					ctx = t.Context()
				}
				if life == nil {
					life = context.Background()
				}
				began, calls := time.Now(), 0
				f := kv.Follow{Life: life, Tick: time.Hour, Prefixes: []string{"record/"}, Retry: time.Second, GiveUp: 10 * time.Second}
				var ended error
				for change, err := range f.Watch(ctx, func(f *kv.Follow) func(context.Context) error {
					return func(context.Context) error {
						calls++
						return c.follow(calls-1, f)
					}
				}) {
					if ended = err; change.Key == "record/stop" {
						break
					}
				}
				if !errors.Is(ended, c.ends) || calls != c.calls || time.Since(began) != c.after {
					t.Errorf("it ended with %v after %d calls and %v", ended, calls, time.Since(began))
				}
			})
		})
	}
}

func hear(f *kv.Follow, yes bool) {
	if yes {
		f.Heard()
	}
}

// A watch ticks, tells of gaps, and only of keys that it covers.
func TestFollowTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []kv.Change
		for c, err := range (kv.Follow{Life: t.Context(), Tick: time.Second, Prefixes: []string{"a/", "b/"}}).Watch(t.Context(), func(f *kv.Follow) func(context.Context) error {
			return func(context.Context) error {
				<-f.Ticks
				return errors.Join(f.Gap(), f.Changed("a/1", "c/1", "b/1"), f.Ticked(), store.ErrDenied)
			}
		}) {
			if err == nil {
				got = append(got, c)
			}
		}
		if want := []kv.Change{{}, {Key: "a/1"}, {Key: "b/1"}, {Tick: true}}; !slices.Equal(got, want) {
			t.Errorf("told %+v, want %+v", got, want)
		}
	})
}

// A watch without a tick does not tick.
func TestFollowNoTick(t *testing.T) {
	for range (kv.Follow{Life: t.Context()}).Watch(t.Context(), func(f *kv.Follow) func(context.Context) error {
		if f.Ticks != nil {
			t.Error("it ticks")
		}
		return func(context.Context) error { return store.ErrDenied }
	}) {
	}
}

// A call has a deadline, its own or 5 s.
func TestBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for want, ctx := range map[time.Duration]context.Context{5 * time.Second: t.Context(), time.Minute: long} {
			bounded, cancel := kv.Bounded(ctx)
			t.Cleanup(cancel)
			if deadline, ok := bounded.Deadline(); !ok || time.Until(deadline) != want {
				t.Errorf("%v is left, want %v", time.Until(deadline), want)
			}
		}
	})
}
