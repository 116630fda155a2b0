package experiment

import (
	"context"
	"fmt"
	"time"

	fleetclient "github.com/tenurehq/tenure/app/fleet/client"
)

// ignoreTrustEnd is the bug of a leader that goes on believing.
const ignoreTrustEnd = "ignore-trust-end"

// noRaftBelief is why a leader that goes on believing is tried with etcd alone.
const noRaftBelief = "A leader that goes on believing is tried with etcd alone: the bug is planted in the lease, which Raft does not use, and Raft itself ends the leadership of a node that hears no quorum. Late writes of a Raft leader come from the pauses of experiments 4 and 5."

// twoBelieve is experiment 3b.
func twoBelieve() Experiment {
	return Experiment{
		Name: "3b", Title: "the same with a leader that ignores the end of its trust", Seed: 3,
		Question:    "If a leader goes on believing, because of a bug, does its work still take no effect?",
		Expectation: "Two believe and both try to write. The ledger refuses the old one from the successor's seal on, with its token, and the old one then steps down. G3 is broken, as planted; all that concerns effects holds. " + noRaftBelief,
		Trials: func(size Size) []Trial {
			t := believeTrial(size, "etcd-cut", pick(size, 1, 20))
			t.Pass = effective()
			t.Broken = []string{"one-believer"}
			return []Trial{t}
		},
		Judge: func(all []Outcome) ([]Threshold, []Table) {
			var bars []Threshold
			for _, o := range all {
				bars = append(bars,
					count(o.Name+": the old leader tried and was refused", o.refusedRounds(), o.Trial.Rounds),
					none(o.Name+": stale writes accepted", o.Damage.Applied), none(o.Name+": numbers reused", o.Damage.Reused))
			}
			return bars, []Table{staleTable(all), roundTable(all)}
		},
	}
}

// effective are the checks of what took effect, and those that the history is sound.
func effective() []string {
	return []string{"token-order", "fence", "sequence", "linearizable", "ledger", "recovery", "once", "evidence", "history"}
}

func believeTrial(size Size, name string, rounds int) Trial {
	return Trial{
		Name: name, Engine: etcdEngine, TTL: pick(size, 2*time.Second, 3*time.Second), Nodes: 3, Rate: 500, Rounds: rounds,
		Patience: 2 * time.Second, Plant: []string{ignoreTrustEnd}, play: believeRounds,
	}
}

func believeRounds(ctx context.Context, s *stage) error {
	return s.cutOff(ctx, func(ctx context.Context, old, next fleetclient.Leader, r *Round) error {
		// Callers that have found the successor; the others still call the old leader.
		const visits = 200
		if err := s.take(ctx, next, visits); err != nil {
			return err
		}
		return s.stale(ctx, old, r)
	})
}

// stale waits for the old leader's late write and notes what the ledger did with it.
func (s *stage) stale(ctx context.Context, old fleetclient.Leader, r *Round) error {
	late, err := s.refusal(ctx, old.ID, old.Token)
	if err != nil {
		return err
	}
	r.Mark, r.Refused, r.Applied = uint64(late.CurrentToken), !late.Applied, late.Applied
	if late.Applied {
		s.say("the ledger, without its fence, took a write of %s with token %d although it has seen %d", late.Holder, late.Token, late.CurrentToken)
		return nil
	}
	s.say("the ledger refused a write of %s with token %d: it has seen %d", late.Holder, late.Token, late.CurrentToken)
	if err := s.down(ctx, old.ID, old.Token); err != nil {
		return err
	}
	r.SteppedDown = true
	return nil
}

func (o Outcome) refusedRounds() (n int) {
	for _, r := range o.Rounds {
		if r.Refused && r.SteppedDown && r.Mark > r.Token {
			n++
		}
	}
	return n
}

func staleTable(all []Outcome) Table {
	t := Table{Title: "stale writes", Head: []string{"trial", "refused", "accepted", "numbers reused", "calls answered", "outcome unknown"}}
	for _, o := range all {
		v, _ := o.Report.Verdict("sequence")
		t.Rows = append(t.Rows, []string{
			o.Name, fmt.Sprint(o.Damage.Refused), fmt.Sprint(o.Damage.Applied), fmt.Sprint(o.Damage.Reused),
			fmt.Sprint(v.Count("calls answered")), fmt.Sprint(v.Count("calls of unknown outcome")),
		})
	}
	return t
}

// mostRounds is how many rounds a table shows; all are in the JSON.
const mostRounds = 12

func roundTable(all []Outcome) Table {
	t := Table{Title: "rounds", Head: []string{"trial", "round", "old leader", "token", "successor", "token", "the late write"}}
	for _, o := range all {
		for i, r := range o.Rounds {
			if i == mostRounds {
				t.Rows = append(t.Rows, []string{o.Name, fmt.Sprintf("and %d more", len(o.Rounds)-i), "", "", "", "", ""})
				break
			}
			late := "none"
			switch {
			case r.Refused:
				late = fmt.Sprintf("refused: token %d is below %d; stepped down: %v", r.Token, r.Mark, r.SteppedDown)
			case r.Applied:
				late = fmt.Sprintf("ACCEPTED with token %d below %d", r.Token, r.Mark)
			}
			t.Rows = append(t.Rows, []string{o.Name, fmt.Sprint(i + 1), r.Node, fmt.Sprint(r.Token), r.Successor, fmt.Sprint(r.Next), late})
		}
	}
	return t
}
