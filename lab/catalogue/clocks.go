package catalogue

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
)

// beyondBound marks trials with a clock rate outside the promised bound.
const beyondBound = "-beyond"

// clocks is experiment 11.
func clocks() experiment.Experiment {
	return experiment.Experiment{
		Name: "11", Title: "clocks that are off by 200 ms and run 1 % too fast or too slow, throughout, and a rate beyond the bound", Seed: 11,
		Question:    "Do wall clocks that are off and jump, and rates within the stated bound, let two believe at once? Would we see it if they did?",
		Expectation: "Within the bound no two believe, and a failover takes as long as with right clocks: terms are measured on a clock that does not jump, and the drift is taken off trust. Beyond it, with the leader's clock 30 % slow, it believes beside its successor on etcd, and one-believer fails; on Raft its trust then outlasts Raft's own lease, which is measured on the process's clock and unseats it first: the term is lost, not expired. With a lease that is measured on the wall clock, the leader whose clock is set back by 400 ms while it is cut off believes beside its successor, and one-believer fails. In all of them nothing stale takes effect.",
		Trials: func(size experiment.Size) []trial.Trial {
			on := func(name, engine string, ttl time.Duration, w wrongClock) trial.Trial {
				t := trial.New(engine, ttl, experiment.Pick(size, 300.0, 2000), 1, trial.Loop{What: "cutting the leader off with wrong clocks", Lasts: w.lasts, Round: w.round})
				t.Name = name
				t.Fleet = func(c *lab.Config) {
					trustFirst(t)(c)
					c.EachNode = w.flags()
				}
				return t
			}
			within := wrongClock{offset: 200 * time.Millisecond, slow: percent, others: percent, lasts: experiment.Pick(size, time.Second, 90*time.Second)}
			ttl := experiment.Pick(size, 2*time.Second, 3*time.Second)
			// The planted bug shows when the jump back exceeds the up to 500 ms that etcd takes to see
			// an expiry: about every other jump of 400 ms does. One round needs a longer jump, and a
			// TTL that exceeds it.
			jumps := within
			jumps.offset, jumps.back = experiment.Pick(size, time.Second, within.offset), true
			planted := on(fmt.Sprintf("etcd-wall-clock-%v", jumps.offset), trial.Etcd, experiment.Pick(size, 4*time.Second, ttl), jumps)
			planted.Plant, planted.Pass, planted.Broken = []string{"wall-clock"}, effective(), []string{"one-believer"}
			// At this rate trust exceeds those 500 ms too.
			far := wrongClock{slow: 30 * percent, lasts: experiment.Pick(size, time.Second, 45*time.Second)}
			beyond := on(trial.Etcd+beyondBound, trial.Etcd, ttl, far)
			beyond.Pass, beyond.Broken = effective(), []string{"one-believer"}
			all := []trial.Trial{on(fmt.Sprintf("etcd-%v", within.offset), trial.Etcd, ttl, within)}
			if size == experiment.Quick {
				return append(all, trial.Together("", planted, beyond)...)
			}
			return append(all, planted, beyond,
				on(fmt.Sprintf("raft-%v", within.offset), trial.Raft, time.Second, within), on(trial.Raft+beyondBound, trial.Raft, time.Second, far))
		},
		Takes: func(size experiment.Size) time.Duration { return experiment.Pick(size, 20*time.Second, 8*time.Minute) },
		Judge: judgeClocks,
	}
}

func judgeClocks(j measure.Judge, o trial.Outcome) {
	early, seen, n := early(o), o.Count(func(r trial.Round) bool { return r.Seen != "" }), len(o.Rounds)
	took := o.Measure(func(r trial.Round) (time.Duration, bool) {
		_, next, ok := o.Change(r)
		return next.Began.Sub(r.Begun), ok
	})
	j.Row("clocks that were off", []string{"cuts", "clocks seen off", "terms", "believed before the successor"},
		n, seen, len(o.Report.Terms), fmt.Sprintf("least %s, p50 %s", measure.MS(early.At(0)), measure.MS(early.At(0.5))))
	const failover = "from the cut to the next term"
	j.Series(failover, o.Name, took)
	j.Count("rounds in which the leader's clock was seen to be off", seen, n)
	j.None("stale writes accepted", o.Damage.Applied)
	if len(o.Broken) == 0 {
		j.Above0("stopped believing before the next term", "> 0, every round", early, n)
	}
	switch beyond := strings.HasSuffix(o.Name, beyondBound); {
	case len(o.Plant) > 0:
	case beyond && o.Engine == trial.Raft:
		j.Count("unseated by Raft before its trust ended", endedBy(o, causeLost), n)
	case beyond:
	case o.Engine == trial.Etcd:
		ownTrust(j, o, n)
		j.Below(failover, took, o.TTL+time.Second, n) // etcd looks for expired leases twice a second
	default:
		ownTrust(j, o, n)
		// A split vote happens from time to time and costs one more election, so nine of ten are judged.
		most, p90 := o.TTL*3/2, took.At(0.9)
		j.Bar(failover, fmt.Sprintf("p90 %s of %d", measure.MS(p90), len(took)), fmt.Sprintf("p90 < %s, %d rounds", measure.MS(most), n), len(took) == n && n > 0 && p90 < most)
	}
}

// percent is a rate in millionths.
const percent = 10_000

// wrongClock is how the clocks of a fleet are wrong.
type wrongClock struct {
	// offset is that of the leader's wall clock; the others have the opposite one. The
	// leader's clock jumps back by twice as much. 0: it does not.
	offset time.Duration
	// slow is by how many millionths the leader's clock is slow, others by how many the other
	// nodes' clocks are fast. Unless back is set, every third round with a jump has the
	// opposite signs.
	slow, others int64
	back         bool
	lasts        time.Duration
}

// flags gives the nodes clocks that differ as much as is promised, from their start: one
// ahead and fast, one behind and slow, one right. Without an offset all are right.
func (w wrongClock) flags() func(int) []string {
	if w.offset == 0 {
		return nil
	}
	return func(n int) []string {
		side := time.Duration(n%3 - 1)
		return []string{"--clock-skew", (side * w.offset).String(), "--clock-drift", fmt.Sprintf("%dppm", side*percent)}
	}
}

// round cuts the leader off while its clock is slow and jumps back or, in every third round,
// is fast and jumps forward.
func (w wrongClock) round(ctx context.Context, s *trial.Run, i int, r *trial.Round) error {
	// A leader whose clock is slow and set back believes longest.
	first, own, others := w.offset, -w.slow, w.others
	if w.offset != 0 && !w.back && i%3 == 2 {
		first, own, others = -first, -own, -others
	}
	for _, n := range s.File.Nodes {
		off, ppm := -first, others
		if n.ID == r.Node {
			off, ppm = first, own
		}
		if err := s.Chaos.SetClock(ctx, n.URL, off, ppm); err != nil {
			return err
		}
	}
	// A keep-alive must have been sent since then, and the cut must come at a random moment of the beat.
	if err := s.Hold(ctx, 500*time.Millisecond+s.TTL/4+s.UpTo(s.TTL/4)); err != nil {
		return err
	}
	if at, err := s.Leader(ctx, 0); err != nil {
		return err
	} else if at.ID != r.Node || at.Token != r.Token {
		s.Say("%s leads meanwhile; repeating the round", at.ID)
		return trial.ErrAgain
	}
	s.Say("cutting %s off, its clock runs at %+d %% and jumps by %v", r.Node, own/percent, -2*first)
	r.Kind = "cut"
	var look func(want time.Duration)
	since := clock.System().Now()
	overtaken := s.Overtaken(r, func(context.Context, inspect.Target) error {
		if w.offset == 0 {
			look(clock.System().Now().Sub(since) * time.Duration(own) / (100 * percent))
		}
		return nil
	})
	_, err := s.Inject(ctx, r, chaos.Spec{Kind: chaos.PartitionLeader, For: s.TTL, Until: func(ctx context.Context, at inspect.Target) error {
		since = clock.System().Now()
		before, err := s.Chaos.ClockAhead(ctx, at.URL)
		if err != nil {
			return err
		}
		if err := s.Chaos.SetClock(ctx, at.URL, -first, own); err != nil {
			return err
		}
		// A jump is visible at once, a rate later.
		look = func(want time.Duration) {
			const tell = 100 * time.Millisecond
			ahead, err := s.Chaos.ClockAhead(ctx, at.URL)
			if moved := ahead - before; err == nil && want.Abs() > tell && (moved-want).Abs() < tell {
				r.Seen = fmt.Sprintf("its clock moved by %v", moved.Round(time.Millisecond))
			}
		}
		if w.offset != 0 {
			look(-2 * first)
		}
		return overtaken(ctx, at)
	}})
	if err != nil {
		return err
	}
	return s.Down(ctx, r.Node, r.Token)
}
