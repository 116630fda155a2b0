package experiment

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	fleetclient "github.com/tenurehq/tenure/reference/client"
)

// wallClock is the bug of a lease that is measured on the wall clock.
const wallClock = "wall-clock"

// clocks is experiment 11.
func clocks() Experiment {
	return Experiment{
		Name: "11", Title: "clocks that are off by 200 ms and run 1 % too fast or too slow, throughout, and a rate beyond the bound", Seed: 11,
		Question:    "Do wall clocks that are off and jump, and rates within the stated bound, let two believe at once? Would we see it if they did?",
		Expectation: "Within the bound no two believe, and a failover takes as long as with right clocks: terms are measured on a clock that does not jump, and the drift is taken off trust. Beyond it, with the leader's clock 30 % slow, it believes beside its successor on etcd, and one-believer fails; on Raft its trust then outlasts Raft's own lease, which is measured on the process's clock and unseats it first: the term is lost, not expired. With a lease that is measured on the wall clock, the leader whose clock is set back by 400 ms while it is cut off believes beside its successor, and one-believer fails. In all of them nothing stale takes effect.",
		Trials: func(size Size) []Trial {
			trial := func(name, engine string, ttl time.Duration, w wrong) Trial {
				t := newTrial(engine, ttl, pick(size, 300.0, 2000), 1, loop{what: "cutting the leader off with wrong clocks", lasts: w.length, do: w.round})
				t.Name = name
				t.fleet = func(c *lab.Config) {
					trustFirst(engine, ttl)(c)
					c.EachNode = w.flags()
				}
				return t
			}
			within := wrong{offset: 200 * time.Millisecond, slow: percent, others: percent, length: pick(size, time.Second, 90*time.Second)}
			ttl := pick(size, 2*time.Second, 3*time.Second)
			// What is planted shows when the jump back outlasts the up to 500 ms that etcd takes
			// to see an expiry: of 400 ms about every other does. One round takes a longer one,
			// and a TTL that outlasts it.
			jumps := within
			jumps.offset, jumps.back = pick(size, time.Second, within.offset), true
			planted := trial(fmt.Sprintf("%s-%s-%v", etcdEngine, wallClock, jumps.offset), etcdEngine, pick(size, 4*time.Second, ttl), jumps)
			planted.Plant, planted.Pass, planted.Broken = []string{wallClock}, effective(), []string{"one-believer"}
			// At this rate trust outlasts those 500 ms, too.
			far := wrong{slow: 30 * percent, length: pick(size, time.Second, 45*time.Second)}
			beyond := trial(etcdEngine+beyondBound, etcdEngine, ttl, far)
			beyond.Pass, beyond.Broken = effective(), []string{"one-believer"}
			all := []Trial{trial(fmt.Sprintf("%s-%v", etcdEngine, within.offset), etcdEngine, ttl, within)}
			if size == Quick {
				return append(all, share(nil, planted, beyond)...)
			}
			return append(all, planted, beyond,
				trial(fmt.Sprintf("%s-%v", raftEngine, within.offset), raftEngine, time.Second, within), trial(raftEngine+beyondBound, raftEngine, time.Second, far))
		},
		Takes: func(size Size) time.Duration { return pick(size, 20*time.Second, 8*time.Minute) },
		Judge: judgeClocks,
	}
}

// beyondBound marks trials in which a rate is further off than is promised for.
const beyondBound = "-beyond"

func judgeClocks(all []Outcome) (bars []Threshold, _ []Table) {
	t := Table{Title: "clocks that were off", Head: []string{"trial", "cuts", "clocks seen off", "terms", "believed before the successor"}}
	failover := Table{Title: "from the cut to the next term", Head: seriesHead("trial")}
	for _, o := range all {
		early, seen, n := o.early(), 0, len(o.Rounds)
		var took series
		for _, r := range o.Rounds {
			if r.Seen != "" {
				seen++
			}
			if c, ok := changeOf(o.Report, r); ok {
				took = append(took, c.next.Began.Sub(r.Begun))
			}
		}
		bars = append(bars, count(o.Name+": rounds in which the leader's clock was seen to be off", seen, n), none(o.Name+": stale writes accepted", o.Damage.Applied))
		if len(o.Broken) == 0 {
			bars = append(bars, Threshold{Name: o.Name + ": stopped believing before the next term", Value: fmt.Sprintf("least %s of %d", ms(early.at(0)), len(early)), Bar: "> 0, every round", OK: early.at(0) > 0 && len(early) == n})
		}
		switch beyond := strings.HasSuffix(o.Name, beyondBound); {
		case len(o.Plant) > 0:
		case !beyond:
			bars = append(bars, o.ownTrust(n), inTime(o, took))
		case o.Engine == raftEngine:
			bars = append(bars, count(o.Name+": unseated by Raft before its trust ended", o.endedBy(causeLost), n))
		}
		t.add(o.Name, n, seen, len(o.Report.Terms), fmt.Sprintf("least %s, p50 %s", ms(early.at(0)), ms(early.at(0.5))))
		failover.Rows = append(failover.Rows, took.row(o.Name))
	}
	return bars, []Table{t, failover}
}

// inTime is the threshold on a failover. Of etcd's every one is judged: it looks for
// expired leases twice a second. On Raft votes are split now and then, which costs
// another election: nine of ten are judged.
func inTime(o Outcome, took series) Threshold {
	name := o.Name + ": from the cut to the next term"
	if o.Engine == etcdEngine {
		return below(name, took, o.TTL+time.Second, len(o.Rounds))
	}
	most, share := o.TTL*3/2, took.at(0.9)
	return Threshold{
		Name: name, Value: fmt.Sprintf("p90 %s of %d", ms(share), len(took)), Bar: fmt.Sprintf("p90 < %s, %d rounds", ms(most), len(o.Rounds)),
		OK: len(took) == len(o.Rounds) && len(took) > 0 && share < most,
	}
}

// percent is a rate in millionths.
const percent = 10_000

// wrong is how clocks are off.
type wrong struct {
	// offset is that of the wall clocks, one way for the leader and the other way for the
	// others. The leader's jumps by twice as much; 0: it does not.
	offset time.Duration
	// slow is by how many millionths the leader's clock is, and others by how many those of
	// the others are fast. Unless back is set, every third round with a jump is the other
	// way round.
	slow, others int64
	back         bool
	length       time.Duration
}

// flags give the nodes clocks that differ as much as is promised for, from their start:
// one ahead and fast, one behind and slow, one right. Without an offset all are right.
func (w wrong) flags() func(int) []string {
	if w.offset == 0 {
		return nil
	}
	return func(n int) []string {
		side := time.Duration(n%3 - 1)
		return []string{"--clock-skew", (side * w.offset).String(), "--clock-drift", fmt.Sprintf("%dppm", side*percent)}
	}
}

// round cuts the leader off; meanwhile its clock is slow and jumps back or, in every third
// round, is fast and jumps forth.
func (w wrong) round(ctx context.Context, s *trialRun, i int, r *Round) error {
	// A clock that is slow and set back makes its leader believe longest.
	first, own, others := w.offset, -w.slow, w.others
	if w.offset != 0 && !w.back && i%3 == 2 {
		first, own, others = -first, -own, -others
	}
	for _, n := range s.file.Nodes {
		off, ppm := -first, others
		if n.ID == r.Node {
			off, ppm = first, own
		}
		if err := s.chaos.SetClock(ctx, n.URL, off, ppm); err != nil {
			return err
		}
	}
	// A keep-alive must have been sent since, and the cut come at any place of the beat.
	if err := s.hold(ctx, 500*time.Millisecond+s.trial.TTL/4+time.Duration(s.rng.Int64N(int64(s.trial.TTL/4)))); err != nil {
		return err
	}
	if at, err := s.leader(ctx, 0); err != nil {
		return err
	} else if at.ID != r.Node || at.Token != r.old() {
		s.say("%s leads meanwhile; once more", at.ID)
		return errAgain
	}
	s.say("cutting %s off, its clock runs at %+d %% and jumps by %v", r.Node, own/percent, -2*first)
	r.Kind = "cut"
	var off func(want time.Duration)
	since := now()
	overtaken := s.overtaken(r, func(context.Context, fleetclient.Leader) error {
		if w.offset == 0 {
			off(now().Sub(since) * time.Duration(own) / (100 * percent))
		}
		return nil
	})
	_, err := s.inject(ctx, r, chaos.Spec{Kind: chaos.PartitionLeader, For: s.trial.TTL, Until: func(ctx context.Context, at chaos.Target) error {
		since = now()
		before, err := s.chaos.ClockAhead(ctx, at.URL)
		if err != nil {
			return err
		}
		if err := s.chaos.SetClock(ctx, at.URL, -first, own); err != nil {
			return err
		}
		// What a jump moves is told at once, what a rate does later.
		off = func(want time.Duration) {
			const tell = 100 * time.Millisecond
			ahead, err := s.chaos.ClockAhead(ctx, at.URL)
			if moved := ahead - before; err == nil && want.Abs() > tell && (moved-want).Abs() < tell {
				r.Seen = fmt.Sprintf("its clock moved by %v", moved.Round(time.Millisecond))
			}
		}
		if w.offset != 0 {
			off(-2 * first)
		}
		return overtaken(ctx, at)
	}})
	if err != nil {
		return err
	}
	return s.down(ctx, r.Node, r.old())
}
