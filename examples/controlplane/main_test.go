package main

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// The shards go where the coordinator places them, a deposed coordinator is refused, no shard has two
// owners, and ten shards meet the objective that a single leader misses. Time is virtual.
func TestControlPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r, err := run(t.Context(), bubble{time.Now()}, &out)
		if err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		var stale *fence.StaleError
		if r.placed != count || r.two != 0 || !errors.As(r.late, &stale) {
			t.Errorf("%d shards are placed, %d had two owners, and the late placement got: %v", r.placed, r.two, r.late)
		}
		if r.ten > objective || r.single <= objective {
			t.Errorf("ten shards took %v, a single leader %v", r.ten, r.single)
		}
		t.Log(&out)
	})
}

// bubble is the clock of a synctest bubble.
type bubble struct{ origin time.Time }

func (b bubble) Now() clock.Instant    { return clock.Instant(time.Since(b.origin)) + 1 }
func (b bubble) NewTimer() clock.Timer { return clock.NewRuntimeTimer(b) }
