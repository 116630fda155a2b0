package mem

import (
	"context"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/kv/kvtest"
	"github.com/tenurehq/tenure/store/storetest"
)

// Memory keeps the contract of a driver, in every mode.
func TestDriver(t *testing.T) {
	for name, o := range map[string]Options{
		"native": {MinTTL: 200 * time.Millisecond}, "hints": {Hints: true, MinTTL: 200 * time.Millisecond}, "one key": {Observed: true, Keys: 1},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDriver(o)
			t.Cleanup(d.Close)
			kvtest.Run(t, kvtest.Engine{Open: func(*testing.T) kv.Driver { return d }, Settle: time.Second})
		})
	}
}

// The store keeps its promises over drivers that are as unhelpful as they may be.
func TestHostile(t *testing.T) {
	for name, bend := range map[string]func(*kvtest.Hostile){
		"reversed": func(h *kvtest.Hostile) { h.Reversed = true },
		"gaps":     func(h *kvtest.Hostile) { h.Gaps, h.Reversed = true, true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := NewDriver(Options{})
			t.Cleanup(d.Close)
			storetest.Run(t, storetest.Engine{
				Open: func(t *testing.T) store.Store {
					h := kvtest.NewHostile(d, 1)
					bend(h)
					s, err := kv.New(context.Background(), h, kv.Config{})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(s.Close)
					return s
				},
				TTL: 400 * time.Millisecond, Settle: 400 * time.Millisecond,
			})
		})
	}
}
