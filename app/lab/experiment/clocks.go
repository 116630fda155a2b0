package experiment

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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
		Name: "11", Title: "clocks that are off by 200 ms and run 1 % too fast or too slow, throughout", Seed: 11,
		Question:    "Do wall clocks that are off and jump, and rates within the stated bound, let two believe at once? Would we see it if they did?",
		Expectation: "No effect: terms are measured on a clock that does not jump, and the drift is taken off trust. With a lease that is measured on the wall clock, the leader whose clock is set back by 400 ms while it is cut off believes beside its successor, and one-believer fails.",
		Trials: func(size Size) []Trial {
			trial := func(name, engine string, ttl, offset, length time.Duration) Trial {
				return Trial{
					Name: fmt.Sprintf("%s-%v", name, offset), Engine: engine, TTL: ttl, Nodes: 3, Rate: pick(size, 300.0, 2000), Rounds: 1, Patience: time.Second, Pass: safe("evidence"),
					fleet: func(c *lab.Config) { c.EachNode = clockFlags(offset) },
					play:  func(ctx context.Context, s *stage) error { return s.wrongClocks(ctx, offset, length) },
				}
			}
			const off = 200 * time.Millisecond
			ttl := pick(size, 2*time.Second, 3*time.Second)
			length := pick(size, time.Second, 3*time.Minute)
			// What is planted shows when the jump outlasts the up to 500 ms that etcd takes to
			// see an expiry: of 400 ms about every other does. One round takes a longer one, and
			// a TTL that outlasts it.
			planted := trial(etcdEngine+"-"+wallClock, etcdEngine, pick(size, 4*time.Second, ttl), pick(size, time.Second, off), length)
			planted.Plant, planted.Pass, planted.Broken = []string{wallClock}, effective(), []string{"one-believer"}
			all := []Trial{trial(etcdEngine, etcdEngine, ttl, off, length), planted}
			if size == Full {
				all = append(all, trial(raftEngine, raftEngine, time.Second, off, length))
			}
			return all
		},
		Judge: func(all []Outcome) ([]Threshold, []Table) {
			var bars []Threshold
			t := Table{Title: "clocks that were off", Head: []string{"trial", "cuts", "clocks seen off", "terms", "believed before the successor"}}
			for _, o := range all {
				var early series
				seen := 0
				for _, r := range o.Rounds {
					if r.Seen != "" {
						seen++
					}
					if c, ok := changeOf(o.Report, r); ok {
						early = append(early, c.next.Began.Sub(c.old.Ended))
					}
				}
				bars = append(bars, count(o.Name+": rounds in which the leader's clock was seen to have jumped", seen, len(o.Rounds)), none(o.Name+": stale writes accepted", o.Damage.Applied))
				if len(o.Plant) == 0 {
					bars = append(bars, Threshold{Name: o.Name + ": stopped believing before the next term", Value: fmt.Sprintf("least %s of %d", ms(early.at(0)), len(early)), Bar: "> 0, every round", OK: early.at(0) > 0 && len(early) == len(o.Rounds)})
				}
				t.Rows = append(t.Rows, []string{o.Name, fmt.Sprint(len(o.Rounds)), fmt.Sprint(seen), fmt.Sprint(len(o.Report.Terms)), fmt.Sprintf("least %s, p50 %s", ms(early.at(0)), ms(early.at(0.5)))})
			}
			return bars, []Table{t}
		},
	}
}

// ppm is a rate of 1 % in millionths.
const ppm = 10_000

// clockFlags gives the nodes clocks that differ as much as is promised for, from their
// start: one ahead and fast, one behind and slow, one right.
func clockFlags(offset time.Duration) func(int) []string {
	return func(n int) []string {
		side := time.Duration(n%3 - 1)
		return []string{"-clock-skew", (side * offset).String(), "-clock-drift", fmt.Sprintf("%dppm", side*ppm)}
	}
}

// wrongClocks cuts the leader off again and again; meanwhile its clock jumps by twice
// the offset, back and, in every third round, forth.
func (s *stage) wrongClocks(ctx context.Context, offset, length time.Duration) error {
	from := chaos.Engine
	if s.trial.Engine == raftEngine {
		from = chaos.Peers
	}
	for i, end := 0, now().Add(length); i == 0 || now() < end; i++ {
		if err := s.all(ctx); err != nil {
			return err
		}
		// A clock that is slow and set back makes its leader believe longest.
		first, slow := offset, int64(-ppm)
		if i%3 == 2 {
			first, slow = -offset, ppm
		}
		l, err := s.leader(ctx, 0)
		if err != nil {
			return err
		}
		for _, n := range s.file.Nodes {
			to := api.LabClock{SkewMS: -first.Milliseconds(), DriftPPM: -slow}
			if n.ID == l.ID {
				to = api.LabClock{SkewMS: first.Milliseconds(), DriftPPM: slow}
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
		s.say("round %d: cutting %s off, its clock jumps by %v", i+1, l.ID, -2*first)
		r := Round{Kind: "cut"}
		p := chaos.Partition{From: from, For: s.trial.TTL, Until: func(ctx context.Context, at chaos.Leader) error {
			r.Node, r.Token = at.ID, uint64(at.Token)
			before := s.wall(ctx, at.URL)
			if err := setClock(ctx, at.URL, api.LabClock{SkewMS: -first.Milliseconds(), DriftPPM: slow}); err != nil {
				return err
			}
			const tell = 100 * time.Millisecond
			if moved := s.wall(ctx, at.URL) - before; (moved + 2*first).Abs() < tell {
				r.Seen = fmt.Sprintf("its clock jumped by %v", moved.Round(time.Millisecond))
			}
			next, err := s.sealed(ctx, at.Token)
			r.Successor, r.Next = next.ID, uint64(next.Token)
			return err
		}}
		if _, err := s.broken("", func() (chaos.Fault, error) { return s.chaos.PartitionLeader(ctx, p) }); err != nil {
			return err
		}
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
