package experiment

import "time"

// fencingOff is experiment 5.
func fencingOff() Experiment {
	return Experiment{
		Name: "5", Title: "fencing off, and on again", Seed: 5,
		Question:    "Is it the fence that protects? What happens in 3b and 4 without it?",
		Expectation: "Without the fence stale writes are accepted and numbers are handed out twice, in every trial. With it, and the same seed, neither happens once. " + noRaftBelief,
		Trials: func(size Size) []Trial {
			var all []Trial
			for _, t := range []Trial{
				believeTrial(size, "etcd-cut", pick(size, 1, 10)),
				pauseTrial(etcdEngine, 2*time.Second, pick(size, 1, 10)),
				pauseTrial(raftEngine, time.Second, pick(size, 1, 10)),
			} {
				off, on := t, t
				off.Name, off.Unfenced = t.Name+"/off", true
				off.Pass, off.Broken, off.Told = []string{"token-order", "evidence", "history"}, []string{"fence"}, []string{"sequence", "ledger"}
				on.Name = t.Name + "/on"
				on.Pass = effective()
				all = append(all, off, on)
			}
			return all
		},
		Judge: func(all []Outcome) ([]Threshold, []Table) {
			var bars []Threshold
			for _, o := range all {
				if o.Unfenced {
					bars = append(bars, above(o.Name+": stale writes accepted", o.Damage.Applied), above(o.Name+": numbers reused", o.Damage.Reused))
					continue
				}
				bars = append(bars, none(o.Name+": stale writes accepted", o.Damage.Applied), none(o.Name+": numbers reused", o.Damage.Reused), above(o.Name+": stale writes refused", o.Damage.Refused))
			}
			return bars, []Table{staleTable(all), roundTable(all)}
		},
	}
}
