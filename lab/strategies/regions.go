package strategies

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lease"
)

// Regions measures Tenure on etcd with one candidate and one member of the engine in each of three
// regions.
type Regions struct {
	// Delays are round trips between two regions that are added; 0 is a leader for each region,
	// whose candidates and engine are in that region.
	Delays []time.Duration
	Timing lease.Timing
	Rounds int
	// Idle is how long the fleet is left alone: no other candidate may lead.
	Idle time.Duration
	// Command starts a candidate.
	Command []string
	Say     func(string)
}

// Region is what was measured with one delay.
type Region struct {
	Delay                                   time.Duration
	Elections, Renewals, Failovers, Resigns measure.Series
	// False is how many changes of leader there were while the fleet was left alone.
	False int
}

// Run measures all delays.
func (r Regions) Run(ctx context.Context) (all []Region, err error) {
	s, err := find("tenure-etcd")
	if err != nil {
		return nil, err
	}
	for _, d := range r.Delays {
		r.Say(fmt.Sprintf("three regions, +%v between them", d))
		a := &arena{strategy: s, command: r.Command, step: 10 * time.Millisecond}
		stop, err := servertest.Run(func(t testing.TB) {
			for _, m := range enginetest.Cluster(t, s.servers, enginetest.PeerDelay(d/2)).Members {
				a.addrs = append(a.addrs, m.Addr())
			}
		})
		if err != nil {
			return all, err
		}
		one, err := r.one(ctx, a, d)
		stop()
		if err != nil {
			return all, err
		}
		all = append(all, one)
	}
	return all, nil
}

func (r Regions) one(ctx context.Context, a *arena, delay time.Duration) (result Region, err error) {
	result.Delay = delay
	o := options{
		nodes: 3, ttl: r.Timing.TTL, fence: true,
		change: func(c *Config) { c.Beat, c.Misses = r.Timing.Beat, r.Timing.Misses },
		delay: func(from, to int) time.Duration {
			if from == to {
				return 0
			}
			return delay / 2
		},
	}
	for range r.Rounds {
		f, err := a.start(ctx, o)
		if err != nil {
			return result, err
		}
		err = func() error {
			defer f.stop()
			leader, err := r.led(ctx, f, 0, -1)
			if err != nil {
				return err
			}
			result.Elections = append(result.Elections, leader.term.began.Sub(f.campaigned))
			pause(ctx, 2*r.Timing.Beat)
			if _, _, err := f.count(ctx, f.procs); err != nil {
				return err
			}
			for _, p := range f.procs {
				result.Renewals = append(result.Renewals, p.counts.Renewed)
			}
			at := now()
			f.send(leader, message{Op: opResign})
			next, err := r.led(ctx, f, at, leader.id)
			if err != nil {
				return err
			}
			result.Resigns = append(result.Resigns, next.term.began.Sub(at))
			pause(ctx, 2*r.Timing.Beat)
			at = now()
			f.kill(next)
			third, err := r.led(ctx, f, at, next.id)
			if err != nil {
				return err
			}
			result.Failovers = append(result.Failovers, third.term.began.Sub(at))
			return nil
		}()
		if err != nil {
			return result, err
		}
	}
	err = r.idle(ctx, a, o, &result)
	return result, err
}

// led waits for a leader whose term began after an instant, and that is not the one before.
func (r Regions) led(ctx context.Context, f *fleet, after clock.Instant, but int) (p *proc, err error) {
	const patience = 2 * time.Minute
	if !f.await(ctx, patience, func() bool {
		i := slices.IndexFunc(f.procs, func(p *proc) bool {
			return p.id != but && p.term != nil && p.term.began > after && p.term.writes > 0 && p.term.ended == 0
		})
		if i >= 0 {
			p = f.procs[i]
		}
		return i >= 0
	}) {
		return nil, fmt.Errorf("nobody leads within %v: %v", patience, f.log())
	}
	return p, nil
}

// idle leaves a fleet alone and counts the changes of leader.
func (r Regions) idle(ctx context.Context, a *arena, o options, result *Region) error {
	f, err := a.start(ctx, o)
	if err != nil {
		return err
	}
	defer f.stop()
	if _, err := r.led(ctx, f, 0, -1); err != nil {
		return err
	}
	f.await(ctx, r.Idle, func() bool { return false })
	f.mu.Lock()
	defer f.mu.Unlock()
	result.False = len(f.terms) - 1
	return context.Cause(ctx)
}

// Summarize makes the table, and the bars for +50 ms between regions.
func (r Regions) Summarize(all []Region) (s measure.Summary) {
	const bar, handover = 50 * time.Millisecond, 400 * time.Millisecond
	j := measure.Judge{Summary: &s}
	for _, x := range all {
		name := fmt.Sprintf("+%v between regions", x.Delay)
		if x.Delay == 0 {
			name = "in each region"
		}
		for _, m := range []struct {
			what string
			measure.Series
		}{{"election", x.Elections}, {"renewal", x.Renewals}, {"crash failover", x.Failovers}, {"handover", x.Resigns}} {
			j.Series("regions", name+": "+m.what, m.Series)
		}
		if x.Delay > bar {
			continue
		}
		j.Bar(name+": crash failover", measure.MS(x.Failovers.At(1)), "<= TTL + 2 s", len(x.Failovers) > 0 && x.Failovers.At(1) <= r.Timing.TTL+2*time.Second)
		j.Bar(name+": handover p95", measure.MS(x.Resigns.At(0.95)), "<= "+measure.MS(handover), len(x.Resigns) > 0 && x.Resigns.At(0.95) <= handover)
		j.None(fmt.Sprintf("%s: changes of leader in %v", name, r.Idle), int64(x.False))
	}
	return s
}
