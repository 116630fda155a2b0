package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
	fleetclient "github.com/tenurehq/tenure/app/fleet/client"
	"github.com/tenurehq/tenure/app/lab/check"
	"github.com/tenurehq/tenure/fence"
)

// pauseBetween is experiment 4.
func pauseBetween() Experiment {
	return Experiment{
		Name: "4", Title: "a pause between a check and a write", Seed: 4,
		Question:    "A leader has checked its term, stands still until another has sealed the ledger, and then writes at once. What becomes of that write?",
		Expectation: "It is refused in every round, with its token, and the node steps down by itself. No clock and no check could have kept it from trying.",
		Trials: func(size Size) []Trial {
			rounds := pick(size, 2, 100)
			trials := []Trial{pauseTrial(etcdEngine, 2*time.Second, rounds), pauseTrial(raftEngine, time.Second, rounds)}
			for i := range trials {
				trials[i].Pass = safe("evidence")
			}
			trials[0].Workers = pick(size, 1, 0)
			if size == Full {
				long := pauseTrial(etcdEngine, 8*time.Second, 1)
				long.Name, long.Pass, long.play, long.Workers = "etcd-8s-freeze-45s", safe("evidence"), freeze, 2
				trials = append(trials, long)
			}
			return trials
		},
		Judge: func(all []Outcome) ([]Threshold, []Table) {
			var bars []Threshold
			for _, o := range all {
				bars = append(bars,
					count(o.Name+": refused, with its token, and stepped down", o.refusedRounds(), o.Trial.Rounds),
					none(o.Name+": stale writes accepted", o.Damage.Applied))
			}
			tables := []Table{staleTable(all), roundTable(all)}
			for _, o := range all {
				tables = append(tables, story(o))
			}
			return bars, tables
		},
	}
}

func pauseTrial(engine string, ttl time.Duration, rounds int) Trial {
	return Trial{
		// A caller that waits for longer than the pause gets what the late write brings.
		Name: fmt.Sprintf("%s-%v", engine, ttl), Engine: engine, TTL: ttl, Nodes: 3, Rate: 500, Rounds: rounds, Patience: patience,
		play: pauseRounds,
	}
}

func pauseRounds(ctx context.Context, s *stage) error {
	return s.pause(ctx, s.trial.TTL+500*time.Millisecond)
}

// freeze is the 45 seconds at TTL 8 s.
func freeze(ctx context.Context, s *stage) error { return s.pause(ctx, 45*time.Second) }

func (s *stage) pause(ctx context.Context, least time.Duration) (err error) {
	watched, err := s.watchWorkers(ctx)
	if err != nil {
		return err
	}
	defer watched()
	for i := range s.trial.Rounds {
		if err := s.all(ctx); err != nil {
			return err
		}
		if err := s.somewhere(ctx); err != nil {
			return err
		}
		s.say("round %d of %d: stopping the leader between a check and its write", i+1, s.trial.Rounds)
		r := Round{Kind: "pause"}
		p := chaos.Pause{For: least, Between: true, Until: func(ctx context.Context, at chaos.Leader) error {
			r.Node, r.Token = at.ID, uint64(at.Token)
			s.say("%s stands still with token %d", at.ID, at.Token)
			next, err := s.sealed(ctx, at.Token)
			if err != nil {
				return err
			}
			r.Successor, r.Next = next.ID, uint64(next.Token)
			s.say("%s leads with token %d and has sealed the ledger; %s still stands", next.ID, next.Token, at.ID)
			const visits = 200
			return s.take(ctx, next, visits)
		}}
		if _, err := s.broken(check.ClassPause, func() (chaos.Fault, error) { return s.chaos.PauseLeader(ctx, p) }); err != nil {
			return err
		}
		old := fleetclient.Leader{ID: r.Node, URL: s.url(r.Node), Token: fence.Token(r.Token)}
		if err := s.stale(ctx, old, &r); err != nil {
			return err
		}
		if err := s.down(ctx, old.ID, old.Token); err != nil {
			return err
		}
		s.rounds = append(s.rounds, r)
		s.round()
	}
	return nil
}
