// Package failover declares the experiments that measure failovers after a crash, and false
// failovers under load.
package failover

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/plot"
	"github.com/tenurehq/tenure/lab/trial"
)

// pulseSuffix is that of trials whose nodes have keepers.
const pulseSuffix = "-pulse"

// Kill is experiment 1.
func Kill() experiment.Experiment {
	return experiment.Experiment{
		Name: "1", Title: "clean kill under load", Seed: 1,
		Question:    "How long does nobody write after the leader is killed with SIGKILL, by TTL and engine?",
		Expectation: "With etcd the TTL, counted from the last keep-alive, and up to half a second until etcd looks: at most TTL + 1 s. With Raft one to two election timeouts and a vote: below 1.5 s at 500 ms. With a keeper (pulse) milliseconds, whatever the TTL. No guarantee is broken.",
		Trials: func(size experiment.Size) []trial.Trial {
			on := func(engine string, ttl time.Duration, rounds int) trial.Trial {
				return trial.New(engine, ttl, experiment.Pick(size, 500.0, 5000), rounds, killScript())
			}
			pulse := func(t trial.Trial) trial.Trial {
				t.Name, t.Pulse = t.Name+pulseSuffix, true
				return t
			}
			if size == experiment.Quick {
				return []trial.Trial{on(trial.Etcd, 2*time.Second, 2), pulse(on(trial.Etcd, 10*time.Second, 2)), on(trial.Raft, 500*time.Millisecond, 3)}
			}
			return []trial.Trial{
				on(trial.Etcd, 2*time.Second, 20), on(trial.Etcd, 3*time.Second, 20), on(trial.Etcd, 10*time.Second, 5), on(trial.Raft, 500*time.Millisecond, 20),
				pulse(on(trial.Etcd, 2*time.Second, 20)), pulse(on(trial.Etcd, 10*time.Second, 20)), pulse(on(trial.Raft, 3*time.Second, 20)),
			}
		},
		Judge: func(j measure.Judge, o trial.Outcome) {
			writes, answers := o.Failovers()
			bar, more := 1500*time.Millisecond, []any{}
			switch {
			case o.Pulse:
				bar = o.TTL / 2
			case o.Engine != trial.Raft:
				bar = o.TTL + 2*time.Second
				more = append(more, fmt.Sprintf("aim TTL + 1 s: %v", len(writes) == o.Trial.Rounds && writes.At(1) < o.TTL+time.Second))
			}
			j.Below("failover, write to write", writes, bar, o.Trial.Rounds)
			j.Series("failover: last write of the old leader to the first of the new, of those that the ledger acknowledged", o.Name, writes, more...)
			j.Series("as callers saw it: last answer to first answer", o.Name, answers)
		},
		Figures: func(all []trial.Outcome, note string) []experiment.Figure {
			return []experiment.Figure{{Name: "figure", Drawing: drawFailovers(all, note)}}
		},
	}
}

func killScript() trial.Loop {
	return trial.Loop{What: "killing the leader", Round: func(ctx context.Context, s *trial.Run, _ int, r *trial.Round) error {
		r.Kind = "kill"
		if s.Pulse {
			if err := s.Kept(ctx, r); err != nil {
				return err
			}
		}
		if _, err := s.Inject(ctx, r, chaos.Spec{Kind: chaos.KillLeader}); err != nil {
			return err
		}
		return s.Succeeded(ctx, r, r.Token)
	}}
}

func drawFailovers(all []trial.Outcome, note string) plot.Failovers {
	f := plot.Failovers{Note: note}
	for _, o := range all {
		name := o.Engine
		if o.Pulse {
			name += pulseSuffix
		}
		i := slices.IndexFunc(f.Series, func(s plot.FailoverSeries) bool { return s.Engine == name })
		if i < 0 {
			i = len(f.Series)
			f.Series = append(f.Series, plot.FailoverSeries{Engine: name})
		}
		writes, _ := o.Failovers()
		f.Series[i].At = append(f.Series[i].At, plot.FailoverPoint{TTL: o.TTL, Bound: o.Report.Run.CrashBound(0), Samples: writes})
	}
	return f
}
