package experiment

import "time"

// fencingOff is experiment 5.
func fencingOff() Experiment {
	return Experiment{
		Name: "5", Title: "fencing off, and on again", Seed: 5,
		Question:    "Is it the fence that protects? What happens in 3b and 4 without it?",
		Expectation: "Without the fence stale writes are accepted and numbers are handed out twice. With it, and the same seed, neither happens once.",
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
			var off, on damage
			for _, o := range all {
				sum := &on
				if o.Unfenced {
					sum = &off
				}
				sum.Refused, sum.Applied, sum.Reused = sum.Refused+o.Damage.Refused, sum.Applied+o.Damage.Applied, sum.Reused+o.Damage.Reused
			}
			return []Threshold{
				above("fencing off: stale writes accepted", off.Applied),
				above("fencing off: numbers reused", off.Reused),
				none("fencing on, same seed: stale writes accepted", on.Applied),
				none("fencing on, same seed: numbers reused", on.Reused),
				above("fencing on: stale writes refused", on.Refused),
			}, []Table{staleTable(all), roundTable(all)}
		},
	}
}
