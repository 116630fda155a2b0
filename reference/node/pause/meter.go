// Package pause measures how long a process is paused.
package pause

import (
	"context"
	"math"
	runtimemetrics "runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// Meter measures pauses of the process: the longest time that a goroutine overslept, because
// the machine was busy or the process or the machine was stopped, and the longest pause of
// the garbage collector. A TTL must be longer than both.
type Meter struct {
	Clock clock.Clock

	slept   atomic.Int64
	stopped atomic.Int64
}

// Overslept is the longest that a goroutine overslept.
func (p *Meter) Overslept() time.Duration { return time.Duration(p.slept.Load()) }

// Collecting is the longest pause of the garbage collector.
func (p *Meter) Collecting() time.Duration { return time.Duration(p.stopped.Load()) }

// Every is how often the meter measures.
const Every = 10 * time.Millisecond

// Run measures until ctx ends. The clock is the host's: it counts a suspend.
func (p *Meter) Run(ctx context.Context) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	last := p.Clock.Now()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := p.Clock.Now()
		if over := now.Sub(last) - Every; int64(over) > p.slept.Load() {
			p.slept.Store(int64(over))
		}
		last = now
		if n%100 == 0 {
			p.collector()
		}
	}
}

// collector reads the collector's pauses from the runtime, whose histogram has the upper
// bound of the longest.
func (p *Meter) collector() {
	sample := []runtimemetrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	runtimemetrics.Read(sample)
	if sample[0].Value.Kind() != runtimemetrics.KindFloat64Histogram {
		return
	}
	h := sample[0].Value.Float64Histogram()
	for i := len(h.Counts) - 1; i >= 0; i-- {
		if h.Counts[i] == 0 {
			continue
		}
		bound := h.Buckets[i+1]
		if math.IsInf(bound, 1) {
			bound = h.Buckets[i]
		}
		p.stopped.Store(int64(bound * float64(time.Second)))
		return
	}
}

// Longest is the longest pause.
func (p *Meter) Longest() time.Duration { return max(p.Overslept(), p.Collecting()) }
