package catalogue

import (
	"context"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/reference/api"
)

// textbook is the trial with the timing of textbooks: a heartbeat every 2 s, a leader is at risk
// after 3 that are missing, and a lease of 8 s.
const textbook = "etcd-8s-textbook"

// budget is experiment 15.
func budget() experiment.Experiment {
	return experiment.Experiment{
		Name: "15", Title: "the 30 seconds of a control plane, phase by phase", Seed: 15,
		Question:    "A control plane may be without a leader for 30 s. After a leader is killed, how long do detection, election, the seal with the replay of what changed, the first write and the reconnection of callers take, and does each keep to its share?",
		Expectation: "Detection takes nearly all of the time: the TTL and up to half a second. The textbook timing (heartbeat 2 s, 3 misses, lease 8 s) needs less than 27 s, ours (lease 3 s) less than 10 s, every time.",
		Trials: func(size experiment.Size) []trial.Trial {
			script := trial.Loop{What: "killing the leader", Round: func(ctx context.Context, s *trial.Run, _ int, r *trial.Round) error {
				r.Kind = "kill"
				if _, err := s.Inject(ctx, r, chaos.Spec{Kind: chaos.KillLeader}); err != nil {
					return err
				}
				if err := s.Succeeded(ctx, r, r.Token); err != nil {
					return err
				}
				return s.Phases(ctx, r)
			}}
			on := func(ttl time.Duration) trial.Trial {
				return trial.New(trial.Etcd, ttl, experiment.Pick(size, 200.0, 2000), experiment.Pick(size, 1, 10), script)
			}
			old := on(8 * time.Second)
			old.Name, old.Beat, old.Misses = textbook, 2*time.Second, 3
			return []trial.Trial{old, on(3 * time.Second)}
		},
		Judge: judgeBudget,
	}
}

// phases are those of a failover, in the words of the experiment.
func phases() []struct{ name, what string } {
	return []struct{ name, what string }{
		{api.PhaseDetect, "detect"}, {api.PhaseElect, "elect"}, {api.PhaseLoad, "seal and replay"}, {api.PhaseWarm, "first write"}, {api.PhaseFound, "reconnect"},
	}
}

func judgeBudget(j measure.Judge, o trial.Outcome) {
	most := 10 * time.Second
	if o.Trial.Name == textbook {
		most = 27 * time.Second
	}
	var totals measure.Series
	recorded := 0
	took, share := map[string]measure.Series{}, map[string]time.Duration{}
	for _, r := range o.Rounds {
		if r.Failover == nil {
			continue
		}
		if len(r.Failover.Phases) == len(phases()) {
			recorded++
		}
		total := time.Duration(0)
		for _, p := range r.Failover.Phases {
			d := time.Duration(p.TookUS) * time.Microsecond
			took[p.Name], share[p.Name] = append(took[p.Name], d), time.Duration(p.ShareUS)*time.Microsecond
			total += d
		}
		totals = append(totals, total)
	}
	j.Count("every phase recorded", recorded, o.Trial.Rounds)
	j.Below("from the last write to the first answer", totals, most, o.Trial.Rounds)
	for _, p := range phases() {
		j.Series("phases of a failover", fmt.Sprintf("%s: %s (share %s)", o.Name, p.what, measure.MS(share[p.name])), took[p.name])
	}
	j.Series("phases of a failover", o.Name+": all", totals)
}
