package kvtest

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/store/kv"
)

// Hostile makes a driver as unhelpful as the contract allows.
type Hostile struct {
	kv.Driver
	// Reversed hints come late and in the wrong order, without values.
	Reversed bool
	// Gaps: now and then a hint is replaced by "anything may have changed".
	Gaps bool
	// Lost is the share of commits whose reply is lost, after they were made or before.
	Lost float64

	mu   sync.Mutex
	rand *rand.Rand
}

// NewHostile returns the driver with nothing wrong yet.
func NewHostile(d kv.Driver, seed uint64) *Hostile {
	return &Hostile{Driver: d, rand: rand.New(rand.NewPCG(seed, 0))}
}

func (h *Hostile) chance(p float64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rand.Float64() < p
}

// Caps implements kv.Driver.
func (h *Hostile) Caps() kv.Caps {
	c := h.Driver.Caps()
	c.Ordered = c.Ordered && !h.Reversed && !h.Gaps
	return c
}

var errLost = errors.New("kvtest: the reply was lost")

// Commit implements kv.Driver.
func (h *Hostile) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	if h.chance(h.Lost / 2) {
		return kv.Result{}, errLost
	}
	r, err := h.Driver.Commit(ctx, t)
	if h.chance(h.Lost / 2) {
		return kv.Result{}, errLost
	}
	return r, err
}

// Grant implements kv.Leaser.
func (h *Hostile) Grant(ctx context.Context, want string, ttl time.Duration) (string, time.Duration, error) {
	id, granted, err := h.Driver.(kv.Leaser).Grant(ctx, want, ttl)
	if h.chance(h.Lost / 2) {
		return "", 0, errLost
	}
	return id, granted, err
}

// Renew implements kv.Leaser.
func (h *Hostile) Renew(ctx context.Context, id string, read []string) (time.Duration, kv.Result, error) {
	ttl, r, err := h.Driver.(kv.Leaser).Renew(ctx, id, read)
	if h.chance(h.Lost / 2) {
		return 0, kv.Result{}, errLost
	}
	return ttl, r, err
}

// Revoke implements kv.Leaser.
func (h *Hostile) Revoke(ctx context.Context, id string) error {
	return h.Driver.(kv.Leaser).Revoke(ctx, id)
}

// Watch implements kv.Driver.
func (h *Hostile) Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[kv.Change, error] {
	if !h.Reversed && !h.Gaps {
		return h.Driver.Watch(ctx, tick, prefixes...)
	}
	return func(yield func(kv.Change, error) bool) {
		var held []kv.Change
		flush := func() bool {
			slices.Reverse(held)
			for _, c := range held {
				if !yield(c, nil) {
					return false
				}
			}
			held = held[:0]
			return true
		}
		// Held hints are let go by a tick of our own, so none is held for long.
		for c, err := range h.Driver.Watch(ctx, min(tick, 20*time.Millisecond), prefixes...) {
			c.Item = nil
			switch {
			case err != nil:
				yield(c, err)
				return
			case c.Tick:
				if !flush() || !yield(c, nil) {
					return
				}
			case c.Key == "" || !h.Reversed:
				if h.Gaps && h.chance(0.2) {
					c.Key = ""
				}
				if !yield(c, nil) {
					return
				}
			default:
				if held = append(held, c); len(held) == 8 && !flush() {
					return
				}
			}
		}
	}
}
