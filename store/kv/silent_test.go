package kv_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/mem"
)

// slow is a driver whose commits take time.
type slow struct {
	*mem.Driver
	clock *manual
	takes time.Duration
}

func (d *slow) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	d.clock.Advance(d.takes)
	return d.Driver.Commit(ctx, t)
}

// Groups can be listed while one holder after the other falls silent, one with each read.
func TestManyFallSilent(t *testing.T) {
	c := &manual{Clock: clock.System(), now: 1}
	d := &slow{Driver: newBent(t, mem.Options{Observed: true}).Driver, clock: c}
	var clients [2]*kv.Store
	for i := range clients {
		s, err := kv.New(t.Context(), d, kv.Config{Clock: c})
		must(t, err)
		t.Cleanup(s.Close)
		clients[i] = s
	}
	// A read and the end of one session take as long as it takes until the next one falls silent.
	const holders, takes, step = 30, 10 * time.Millisecond, 19 * time.Millisecond
	for i := range holders {
		group := fmt.Sprintf("g%02d", i)
		opened, err := clients[0].Open(t.Context(), tenure.Candidate{ID: group}, time.Second+time.Duration(i)*step, store.OpenOptions{Scope: store.Scope{group}})
		must(t, err)
		_, err = clients[0].Acquire(t.Context(), opened.ID, store.Record{Group: group})
		must(t, err)
	}
	led := func() (n int) {
		t.Helper()
		views, err := clients[1].Groups(t.Context(), store.Scope{"g*"}, store.Page{})
		must(t, err)
		for _, v := range views {
			if v.State == tenure.Led {
				n++
			}
		}
		return n
	}
	for _, later := range []time.Duration{0, 0, 400 * time.Millisecond, 400 * time.Millisecond, 210 * time.Millisecond} {
		c.Advance(later)
		if n := led(); n != holders {
			t.Fatalf("%d groups are led, want %d", n, holders)
		}
	}
	d.takes = takes
	for range holders {
		if led() == 0 {
			return
		}
	}
	t.Errorf("%d groups are still led", led())
}
