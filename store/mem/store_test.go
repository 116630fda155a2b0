package mem

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/storetest"
)

func TestContract(t *testing.T) {
	for name, o := range map[string]Options{
		"native":        {},
		"native hints":  {Hints: true},
		"observed":      {Observed: true, MinTTL: 200 * time.Millisecond},
		"one key":       {Observed: true, Keys: 1, MinTTL: 200 * time.Millisecond},
		"small batches": {Keys: 16},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, engine(t, o))
		})
	}
}

func engine(t *testing.T, o Options) storetest.Engine {
	d := NewDriver(o)
	t.Cleanup(d.Close)
	return storetest.Engine{
		Open: func(t *testing.T) store.Store {
			s, err := d.Open()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			return s
		},
		TTL: 400 * time.Millisecond, Settle: 400 * time.Millisecond,
		Restart: func(*testing.T) { d.Do(func(now clock.Instant, e *Engine) { e.Restart(now) }) },
		Rewind: func(*testing.T) func() {
			var backup *Snapshot
			d.Do(func(_ clock.Instant, e *Engine) { backup = e.Snapshot() })
			return func() { d.Do(func(now clock.Instant, e *Engine) { e.Restore(now, backup) }) }
		},
	}
}
