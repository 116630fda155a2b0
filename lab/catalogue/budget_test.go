package catalogue

import (
	"slices"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/reference/api"
)

// The bars of experiment 15 are met by rounds with all phases, and missed by a failover that is
// too long and by one with a phase that is not recorded.
func TestJudgeBudget(t *testing.T) {
	t.Parallel()
	const recorded, total = "etcd-3s: every phase recorded", "etcd-3s: from the last write to the first answer"
	for name, c := range map[string]struct {
		change func(*api.Failover)
		want   []string
	}{
		"as it should be": {func(*api.Failover) {}, nil},
		"too long":        {func(f *api.Failover) { f.Phases[0].TookUS = (11 * time.Second).Microseconds() }, []string{total}},
		"a phase less":    {func(f *api.Failover) { f.Phases = f.Phases[:4] }, []string{recorded}},
	} {
		e := budget()
		o := trial.Outcome{Trial: e.Trials(experiment.Quick)[1]}
		f := &api.Failover{}
		for _, p := range phases() {
			f.Phases = append(f.Phases, api.Phase{Name: p.name, TookUS: time.Second.Microseconds()})
		}
		c.change(f)
		o.Rounds = []trial.Round{{Failover: f}}
		var got []string
		for _, b := range missed(e.Summarize([]trial.Outcome{o}).Thresholds) {
			if b != "etcd-3s: checks as expected" { // there is no history here
				got = append(got, b)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: missed %q, want %q", name, got, c.want)
		}
	}
}

// The bar of experiment 16 is met if the worker refused the old leader's order, and missed if it
// did not.
func TestJudgeFrozenOrder(t *testing.T) {
	t.Parallel()
	const bar = "etcd-freeze: the worker refused the old leader's order"
	for _, seen := range []string{"refused", ""} {
		e := frozenOrder()
		o := trial.Outcome{Trial: e.Trials(experiment.Quick)[0], Rounds: []trial.Round{{Seen: seen}}}
		if got := slices.Contains(missed(e.Summarize([]trial.Outcome{o}).Thresholds), bar); got != (seen == "") {
			t.Errorf("seen %q: missed %v", seen, got)
		}
	}
}
