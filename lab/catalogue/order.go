package catalogue

import (
	"context"
	"slices"
	"time"

	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
)

// frozenOrder is experiment 16.
func frozenOrder() experiment.Experiment {
	return experiment.Experiment{
		Name: "16", Title: "a freeze of 45 s before an order is sent to a worker", Seed: 16,
		Question:    "A leader stands still for 45 s when it is about to send an order to a worker. Another leads meanwhile, and its orders reach the worker first. Who refuses the old order?",
		Expectation: "The worker: it has seen the new leader's token. The ledger is not asked, since the order was recorded before the freeze. The old leader then steps down.",
		Trials: func(size experiment.Size) []trial.Trial {
			script := trial.Loop{What: "stopping the leader before it sends an order", Round: frozenRound}
			freeze := experiment.Pick(size, 3*time.Second, 45*time.Second)
			t := trial.New(trial.Etcd, experiment.Pick(size, 2*time.Second, 8*time.Second), 200, experiment.Pick(size, 1, 3), script)
			t.Name, t.Workers, t.For, t.Patience = "etcd-freeze", 1, freeze, trial.Patience
			t.Play = func(ctx context.Context, s *trial.Run) error {
				stop, err := s.WatchWorkers(ctx)
				if err != nil {
					return err
				}
				defer stop()
				return script.Play(ctx, s)
			}
			return []trial.Trial{t}
		},
		Judge: func(j measure.Judge, o trial.Outcome) {
			j.Count("the worker refused the old leader's order", o.Count(func(r trial.Round) bool { return r.Seen != "" }), o.Trial.Rounds)
			j.None("stale writes accepted", o.Damage.Applied)
			story(j, o)
		},
	}
}

// frozenRound stops the leader until the successor's orders have reached the worker, and waits for
// the worker's refusal.
func frozenRound(ctx context.Context, s *trial.Run, _ int, r *trial.Round) error {
	r.Kind = "freeze"
	refused, err := s.Refusals(ctx)
	if err != nil {
		return err
	}
	_, err = s.Inject(ctx, r, chaos.Spec{Kind: chaos.PauseLeader, For: s.For, Sending: true, Until: s.Overtaken(r, func(ctx context.Context, next inspect.Target) error {
		return trial.Await(ctx, "an order of the new leader at every worker", func(ctx context.Context) bool {
			tokens, err := s.WorkerTokens(ctx)
			return err == nil && slices.Min(tokens) >= next.Token
		})
	})})
	if err != nil {
		return err
	}
	if err := trial.Await(ctx, "the worker refuses the old leader's order", func(ctx context.Context) bool {
		n, err := s.Refusals(ctx)
		return err == nil && n > refused
	}); err != nil {
		return err
	}
	r.Seen = "the worker refused an order with the old token"
	return s.Down(ctx, r.Node, r.Token)
}
