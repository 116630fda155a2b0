package experiment

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
	"github.com/tenurehq/tenure/app/fleet/api"
	"github.com/tenurehq/tenure/app/lab"
	"github.com/tenurehq/tenure/fence"
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
				return Trial{
					Name: name, Engine: engine, TTL: ttl, Nodes: 3, Rate: pick(size, 300.0, 2000), Rounds: 1, Patience: time.Second, Pass: safe("evidence"),
					fleet: func(c *lab.Config) {
						trustFirst(engine, ttl)(c)
						c.EachNode = w.flags()
					},
					play: func(ctx context.Context, s *stage) error { return s.wrongClocks(ctx, w) },
				}
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

func judgeClocks(all []Outcome) ([]Threshold, []Table) {
	var bars []Threshold
	t := Table{Title: "clocks that were off", Head: []string{"trial", "cuts", "clocks seen off", "terms", "believed before the successor"}}
	failover := Table{Title: "from the cut to the next term", Head: seriesHead("trial")}
	for _, o := range all {
		var early, took series
		seen := 0
		for _, r := range o.Rounds {
			if r.Seen != "" {
				seen++
			}
			if c, ok := changeOf(o.Report, r); ok {
				early, took = append(early, c.next.Began.Sub(c.old.Ended)), append(took, c.next.Began.Sub(r.Begun))
			}
		}
		n := len(o.Rounds)
		bars = append(bars, count(o.Name+": rounds in which the leader's clock was seen to be off", seen, n), none(o.Name+": stale writes accepted", o.Damage.Applied))
		beyond := strings.HasSuffix(o.Name, beyondBound)
		if len(o.Broken) == 0 {
			bars = append(bars, Threshold{Name: o.Name + ": stopped believing before the next term", Value: fmt.Sprintf("least %s of %d", ms(early.at(0)), len(early)), Bar: "> 0, every round", OK: early.at(0) > 0 && len(early) == n})
		}
		switch {
		case len(o.Plant) > 0:
		case !beyond:
			bars = append(bars, o.ownTrust(n), inTime(o, took))
		case o.Engine == raftEngine:
			bars = append(bars, count(o.Name+": unseated by Raft before its trust ended", o.endedBy(causeLost), n))
		}
		t.Rows = append(t.Rows, []string{o.Name, fmt.Sprint(n), fmt.Sprint(seen), fmt.Sprint(len(o.Report.Terms)), fmt.Sprintf("least %s, p50 %s", ms(early.at(0)), ms(early.at(0.5)))})
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
		return []string{"-clock-skew", (side * w.offset).String(), "-clock-drift", fmt.Sprintf("%dppm", side*percent)}
	}
}

// wrongClocks cuts the leader off again and again; meanwhile its clock is slow and jumps
// back or, in every third round, is fast and jumps forth.
func (s *stage) wrongClocks(ctx context.Context, w wrong) error {
	from := chaos.Engine
	if s.trial.Engine == raftEngine {
		from = chaos.Peers
	}
	for i, end := 0, now().Add(w.length); i == 0 || now() < end; i++ {
		if err := s.all(ctx); err != nil {
			return err
		}
		// A clock that is slow and set back makes its leader believe longest.
		first, own, others := w.offset, -w.slow, w.others
		if w.offset != 0 && !w.back && i%3 == 2 {
			first, own, others = -first, -own, -others
		}
		l, err := s.leader(ctx, 0)
		if err != nil {
			return err
		}
		for _, n := range s.file.Nodes {
			to := api.LabClock{SkewMS: -first.Milliseconds(), DriftPPM: others}
			if n.ID == l.ID {
				to = api.LabClock{SkewMS: first.Milliseconds(), DriftPPM: own}
			}
			if err := setClock(ctx, n.URL, to); err != nil {
				return err
			}
		}
		// A keep-alive must have been sent since.
		if err := s.hold(ctx, s.trial.TTL/4); err != nil {
			return err
		}
		if err := s.somewhere(ctx); err != nil {
			return err
		}
		if at, err := s.leader(ctx, 0); err != nil {
			return err
		} else if at != l {
			s.say("%s leads meanwhile; once more", at.ID)
			i--
			continue
		}
		s.say("round %d: cutting %s off, its clock runs at %+d %% and jumps by %v", i+1, l.ID, own/percent, -2*first)
		r := Round{Kind: "cut"}
		p := chaos.Partition{From: from, For: s.trial.TTL, Until: func(ctx context.Context, at chaos.Leader) error {
			r.Node, r.Token = at.ID, uint64(at.Token)
			since, before := now(), s.wall(ctx, at.URL)
			if err := setClock(ctx, at.URL, api.LabClock{SkewMS: -first.Milliseconds(), DriftPPM: own}); err != nil {
				return err
			}
			// What a jump moves is told at once, what a rate does later.
			off := func(want time.Duration) {
				const tell = 100 * time.Millisecond
				if moved := s.wall(ctx, at.URL) - before; want.Abs() > tell && (moved-want).Abs() < tell {
					r.Seen = fmt.Sprintf("its clock moved by %v", moved.Round(time.Millisecond))
				}
			}
			if w.offset != 0 {
				off(-2 * first)
			}
			next, err := s.sealed(ctx, at.Token)
			if err == nil && w.offset == 0 {
				off(now().Sub(since) * time.Duration(own) / (100 * percent))
			}
			r.Successor, r.Next = next.ID, uint64(next.Token)
			return err
		}}
		f, err := s.broken("", func() (chaos.Fault, error) { return s.chaos.PartitionLeader(ctx, p) })
		if err != nil {
			return err
		}
		r.Begun, r.Healed = f.Begun, f.Healed
		if err := s.down(ctx, r.Node, fence.Token(r.Token)); err != nil {
			return err
		}
		s.rounds = append(s.rounds, r)
	}
	s.round()
	return nil
}

// wall is how far a node's wall clock is ahead of this process's, as the quickest of a
// few calls tells.
func (s *stage) wall(ctx context.Context, url string) (ahead time.Duration) {
	const tries = 5
	quickest := time.Hour
	for range tries {
		sent := time.Now()
		st, ok := s.status(ctx, url)
		if took := time.Since(sent); ok && took < quickest {
			quickest, ahead = took, time.UnixMilli(st.WallMS).Sub(sent.Add(took/2))
		}
	}
	return ahead
}

func setClock(ctx context.Context, url string, to api.LabClock) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	body, err := json.Marshal(to)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/lab/clock", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("the clock cannot be set: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the clock cannot be set: %s", resp.Status)
	}
	return nil
}
