package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
	"github.com/tenurehq/tenure/app/lab/check"
)

// kill is experiment 1.
func kill() Experiment {
	return Experiment{
		Name: "1", Title: "clean kill under load", Seed: 1,
		Question:    "How long does nobody write after the leader is killed with SIGKILL, by TTL and engine?",
		Expectation: "With etcd the TTL, counted from the last keep-alive, and up to half a second until etcd looks: at most TTL + 1 s. With Raft one to two election timeouts and a vote: below 1.5 s at 500 ms. No guarantee is broken.",
		Trials: func(size Size) []Trial {
			trial := func(engine string, ttl time.Duration, rounds int) Trial {
				return Trial{
					Name: fmt.Sprintf("%s-%v", engine, ttl), Engine: engine, TTL: ttl, Nodes: 3, Rate: pick(size, 500.0, 5000), Rounds: rounds,
					Patience: time.Second, Pass: safe("evidence"), play: killRounds,
				}
			}
			if size == Quick {
				return []Trial{trial(etcdEngine, 2*time.Second, 2), trial(raftEngine, 500*time.Millisecond, 3)}
			}
			return []Trial{
				trial(etcdEngine, 2*time.Second, 20), trial(etcdEngine, 3*time.Second, 20), trial(etcdEngine, 10*time.Second, 5),
				trial(raftEngine, 500*time.Millisecond, 20),
			}
		},
		Judge:  judgeKill,
		figure: drawFailovers,
	}
}

func killRounds(ctx context.Context, s *stage) error {
	for i := range s.trial.Rounds {
		// A clean kill: the others are well.
		if err := s.all(ctx); err != nil {
			return err
		}
		if err := s.somewhere(ctx); err != nil {
			return err
		}
		s.say("round %d of %d: killing the leader", i+1, s.trial.Rounds)
		f, err := s.broken(check.ClassKill, func() (chaos.Fault, error) { return s.chaos.KillLeader(ctx) })
		if err != nil {
			return err
		}
		next, err := s.leader(ctx, f.Token)
		if err != nil {
			return err
		}
		s.say("%s leads with token %d", next.ID, next.Token)
		s.rounds = append(s.rounds, Round{Kind: "kill", Node: f.Target, Token: uint64(f.Token), Successor: next.ID, Next: uint64(next.Token)})
		s.round()
	}
	return nil
}

func judgeKill(all []Outcome) ([]Threshold, []Table) {
	var bars []Threshold
	writes := Table{Title: "failover: last write of the old leader to the first of the new, of those that the ledger acknowledged", Head: seriesHead("trial")}
	answers := Table{Title: "as callers saw it: last answer to first answer", Head: seriesHead("trial")}
	for _, o := range all {
		w, a := killed(o)
		bar := o.TTL + 2*time.Second // 5 s at 3 s
		if o.Engine == raftEngine {
			bar = 1500 * time.Millisecond
		}
		bars = append(bars, below(o.Name+": failover, write to write", w, bar, o.Trial.Rounds))
		if o.Engine == etcdEngine {
			aim := below(o.Name+": aim, TTL + 1 s", w, o.TTL+time.Second, o.Trial.Rounds)
			writes.Rows = append(writes.Rows, append(w.row(o.Name), fmt.Sprintf("aim TTL + 1 s: %v", aim.OK)))
		} else {
			writes.Rows = append(writes.Rows, w.row(o.Name))
		}
		answers.Rows = append(answers.Rows, a.row(o.Name))
	}
	return bars, []Table{writes, answers}
}

// killed are the failovers of a trial.
func killed(o Outcome) (writes, answers series) {
	for _, r := range o.Rounds {
		if d, ok := o.failover(r); ok {
			writes = append(writes, d)
		}
		if d, ok := o.silence(r); ok {
			answers = append(answers, d)
		}
	}
	return writes, answers
}
