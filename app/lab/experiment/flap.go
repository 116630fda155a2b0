package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
	fleetclient "github.com/tenurehq/tenure/app/fleet/client"
)

// flap is experiment 13.
func flap() Experiment {
	return Experiment{
		Name: "13", Title: "a connection that comes and goes near the TTL", Seed: 13,
		Question:    "Does a leader whose connection to the engine flaps near the TTL bring the fleet to flap?",
		Expectation: "No guarantee is broken. A cut costs at most one change of leader, and calls that fail are made no more often than they time out, so that an engine in trouble is not called more than one that is well.",
		Trials: func(size Size) []Trial {
			trial := func(engine string, ttl time.Duration) Trial {
				return Trial{
					Name: fmt.Sprintf("%s-%v", engine, ttl), Engine: engine, TTL: ttl, Nodes: 3, Rate: pick(size, 300.0, 2000), Rounds: pick(size, 1, 3),
					Patience: time.Second, Pass: safe("evidence"), play: func(ctx context.Context, s *stage) error {
						return s.flap(ctx, pick(size, 5*time.Second, 30*time.Second))
					},
				}
			}
			return []Trial{trial(etcdEngine, pick(size, 2*time.Second, 3*time.Second)), trial(raftEngine, time.Second)}
		},
		Judge: func(all []Outcome) ([]Threshold, []Table) {
			var bars []Threshold
			t := Table{Title: "flaps", Head: []string{"trial", "for", "cuts", "changes of leader", "keep-alives failed"}}
			for _, o := range all {
				var cuts, failed int64
				var length time.Duration
				for _, r := range o.Rounds {
					cuts, failed = cuts+said(r.Seen, "cuts"), failed+said(r.Seen, "keep-alives failed")
					length += r.Healed.Sub(r.Begun)
				}
				changes := int64(len(o.Report.Terms) - 1)
				bars = append(bars, atMost(o.Name+": changes of leader, one a cut at most", changes, cuts))
				if o.Engine == etcdEngine {
					bars = append(bars, atMost(o.Name+": keep-alives that failed, one a timeout at most", failed, length.Milliseconds()/max(1, o.Report.Run.CallTimeoutMS)))
				}
				t.Rows = append(t.Rows, []string{o.Name, ms(length), fmt.Sprint(cuts), fmt.Sprint(changes), fmt.Sprint(failed)})
			}
			return bars, []Table{t}
		},
	}
}

// flap lets the connection of whoever leads come and go for d, round by round: a node
// that has lost its term goes on flapping as a follower, and seldom leads again.
func (s *stage) flap(ctx context.Context, d time.Duration) error {
	from := chaos.Engine
	if s.trial.Engine == raftEngine {
		from = chaos.Peers
	}
	return s.again(ctx, fmt.Sprintf("the leader's connection comes and goes for %v", d), func(ctx context.Context, _ int, _ fleetclient.Leader) (Round, error) {
		r := Round{Kind: "flap"}
		f, err := s.broken("", func() (chaos.Fault, error) {
			return s.chaos.FlapLeader(ctx, chaos.Flap{From: from, For: d, Seed: s.rng.Uint64()})
		})
		if err != nil {
			return r, err
		}
		r.Begun, r.Healed, r.Seen = f.Begun, f.Healed, f.Evidence
		next, err := s.writes(ctx)
		r.Successor, r.Next = next.ID, uint64(next.Token)
		return r, err
	})
}
