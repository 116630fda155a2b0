package experiment

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
	fleetclient "github.com/tenurehq/tenure/app/fleet/client"
	"github.com/tenurehq/tenure/app/lab"
	"github.com/tenurehq/tenure/app/lab/load"
)

// ledgerKilled is experiment 10.
func ledgerKilled() Experiment {
	return Experiment{
		Name: "10", Title: "the ledger killed under load", Seed: 10,
		Question:    "What is lost when the ledger is killed with SIGKILL in the middle of its commits, and what does the leader do?",
		Expectation: "Nothing that was acknowledged, and no number is given twice: calls under way become unknown. A leader whose ledger is back before its patience (the TTL) is over keeps its term. One whose ledger stays away for longer steps down by itself, and somebody leads and writes within G7's bound once it is back.",
		Trials: func(size Size) []Trial {
			trial := func(engine string, ttl, gone time.Duration, rounds int) Trial {
				name := fmt.Sprintf("%s-%v", engine, ttl)
				t := Trial{
					Name: name, Engine: engine, TTL: ttl, Nodes: 3, Rate: pick(size, 500.0, 5000), Rounds: rounds,
					Patience: time.Second, Pass: safe("evidence"), play: ledgerRounds,
					fleet: func(c *lab.Config) {
						c.RestartWait = gone
						c.NodeArgs = append(c.NodeArgs, "-sink-patience", ttl.String())
					},
				}
				if gone > ttl { // leaders step down by themselves: G4 leaves those terms to G5
					t.Name, t.Pass = t.Name+longName, safe("evidence", "baton")
				}
				return t
			}
			short := 200 * time.Millisecond
			all := []Trial{trial(etcdEngine, 3*time.Second, short, pick(size, 2, 20))}
			if size == Full {
				all = append(all, trial(raftEngine, 2*time.Second, short, 20), trial(raftEngine, 2*time.Second, 4*time.Second, 5))
			}
			return append(all, trial(etcdEngine, 2*time.Second, 4*time.Second, pick(size, 1, 5)))
		},
		Judge: func(all []Outcome) ([]Threshold, []Table) {
			var bars []Threshold
			t := Table{Title: "kills", Head: []string{"trial", "kills", "term kept", "calls answered", "outcome unknown", "stale refused"}}
			for _, o := range all {
				kept, stepped := 0, 0
				for _, r := range o.Rounds {
					if r.Next == r.Token {
						kept++
					}
					if c := o.term(r.Token).Cause; r.Next > r.Token && (c == "unhealthy" || c == "resigned") {
						stepped++
					}
				}
				if o.long() {
					bars = append(bars, count(o.Name+": the leader steps down by itself", stepped, o.Trial.Rounds))
				} else {
					bars = append(bars, count(o.Name+": the leader keeps its term", kept, o.Trial.Rounds))
				}
				bars = append(bars, none(o.Name+": numbers given twice", o.Damage.Reused), none(o.Name+": stale writes accepted", o.Damage.Applied))
				v, _ := o.Report.Verdict("sequence")
				t.Rows = append(t.Rows, []string{
					o.Name, fmt.Sprint(len(o.Rounds)), fmt.Sprint(kept), fmt.Sprint(v.Count("calls answered")), fmt.Sprint(v.Count("calls of unknown outcome")), fmt.Sprint(o.Damage.Refused),
				})
			}
			return bars, []Table{t}
		},
	}
}

// long: the ledger stays away for longer than a leader waits for it.
func (t Trial) long() bool { return strings.HasSuffix(t.Name, longName) }

const longName = "-long"

func ledgerRounds(ctx context.Context, s *stage) error {
	return s.again(ctx, "killing the ledger", func(ctx context.Context, _ int, l fleetclient.Leader) (Round, error) {
		r := Round{Kind: "kill"}
		f, err := s.broken("", func() (chaos.Fault, error) { return s.chaos.Kill(ctx, "ledger") })
		if err != nil {
			return r, err
		}
		r.Seen = f.Evidence
		// Somebody writes again before the round is judged.
		next, err := s.writes(ctx)
		r.Successor, r.Next = next.ID, uint64(next.Token)
		return r, err
	})
}

// ask makes calls for numbers within d and returns how many were answered; those that
// find nobody to ask are not.
func (s *stage) ask(ctx context.Context, calls int64, d time.Duration, urls ...string) (int64, error) {
	s.loads++
	const few = 8
	r, err := load.Run(ctx, load.Config{
		URLs: urls, Rate: 100, Connections: few, Count: calls, For: d, Timeout: s.trial.Patience, Patience: d, Calls: s.calls, Name: fmt.Sprintf("visitor-%d-", s.loads),
	})
	return r.Calls, err
}

// writes waits until the ledger takes a write again, and returns whose.
func (s *stage) writes(ctx context.Context) (l fleetclient.Leader, err error) {
	err = await(ctx, "a number from the leader", func(ctx context.Context) bool {
		var lerr error
		if l, lerr = s.leader(ctx, 0); lerr != nil {
			return false
		}
		got, nerr := s.ask(ctx, 1, time.Second, l.URL)
		return nerr == nil && got > 0
	})
	return l, err
}
