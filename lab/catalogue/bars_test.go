package catalogue

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
)

// missed returns the names of the missed bars.
func missed(bars []measure.Threshold) (names []string) {
	for _, b := range bars {
		if !b.OK {
			names = append(names, b.Name)
		}
	}
	return names
}

// flapping returns a trial on etcd with a TTL of 3 s and four cuts, 10 s apart: those of 4 s
// ended terms, the one of 2 s did not.
func flapping() trial.Outcome {
	t := flap().Trials(experiment.Full)[0]
	o := trial.Outcome{Trial: t, Report: verdict.Report{Run: flap().Describe(t, experiment.Full)}}
	cut := func(token fence.Token, begun, d time.Duration) {
		o.Rounds = append(o.Rounds, trial.Round{Kind: flapCut, Token: token, Begun: at(begun), Healed: at(begun + d)})
	}
	cut(1, 10*sec, 4*sec)
	cut(2, 20*sec, 2*sec)
	cut(2, 30*sec, 4*sec)
	cut(3, 40*sec, 4*sec)
	for i, began := range []time.Duration{sec, 13 * sec, 33 * sec, 43 * sec} {
		o.Report.Terms = append(o.Report.Terms, verdict.Term{Token: token(i + 1), Began: at(began), Ended: at(began + 60*sec)})
		if i > 0 {
			o.Report.Terms[i-1].Ended = at(began - sec/2)
		}
	}
	o.Rounds = append(o.Rounds, trial.Round{Kind: flapAll, Seen: "cuts: 4; node-1: keep-alives failed: 8 (error 8); terms ended: 2 (expired 2); node-2: keep-alives failed: 4 (error 4)"})
	return o
}

// Each bar of experiment 13 can be missed: by a fleet that changes its leader by itself or too
// soon, by cuts that hit another node, by too many calls, and by a flap without an effect.
func TestJudgeFlap(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*trial.Outcome)
		want   []string
	}{
		"as it should be": {func(*trial.Outcome) {}, nil},
		"a leader that was not cut off": {func(o *trial.Outcome) {
			o.Report.Terms = append(o.Report.Terms, verdict.Term{Token: 5, Began: at(50 * sec)})
		}, []string{"etcd-3s: leaders unseated that were not cut off"}},
		"more changes than cuts": {func(o *trial.Outcome) {
			for i := range 2 {
				o.Report.Terms = append(o.Report.Terms, verdict.Term{Token: token(5 + i), Began: at(time.Duration(50+10*i) * sec)})
			}
		}, []string{"etcd-3s: changes of leader, one a cut at most", "etcd-3s: leaders unseated that were not cut off"}},
		"too soon": {func(o *trial.Outcome) { o.Report.Terms[3].Began = at(35 * sec) }, []string{"etcd-3s: cuts that hit whoever led", "etcd-3s: least time between two changes"}},
		"astray":   {func(o *trial.Outcome) { o.Rounds[1].Token = 1 }, []string{"etcd-3s: cuts that hit whoever led"}},
		"in the first leader's wake": {func(o *trial.Outcome) {
			o.Report.Terms, o.Rounds = o.Report.Terms[:2], o.Rounds[:2]
		}, []string{"etcd-3s: changes of leader, one a cut at most"}},
		// 14 s of cuts have 18 timeouts of 750 ms, and two for each cut.
		"as many calls as may fail": {func(o *trial.Outcome) {
			o.Rounds[4].Seen = "node-1: keep-alives failed: 20 (x); node-2: keep-alives failed: 5 (x)"
		}, nil},
		"calls without end": {func(o *trial.Outcome) {
			o.Rounds[4].Seen = "node-1: keep-alives failed: 20 (x); node-2: keep-alives failed: 6 (x)"
		}, []string{"etcd-3s: keep-alives that failed, one a timeout at most"}},
		"no cuts": {func(o *trial.Outcome) { o.Rounds = o.Rounds[4:] }, []string{
			"etcd-3s: cuts that hit whoever led", "etcd-3s: changes of leader, one a cut at most", "etcd-3s: leaders unseated that were not cut off", "etcd-3s: keep-alives that failed, one a timeout at most",
		}},
	} {
		o := flapping()
		c.change(&o)
		bars := barsOf(flap(), o)
		if got := missed(bars); !slices.Equal(got, c.want) {
			t.Errorf("%s: missed %q, want %q", name, got, c.want)
		}
	}
}

// Experiment 5 is judged trial by trial: damage in one trial does not count for another.
func TestJudgeUnfenced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(off, on *trial.Damage)
		want   string
	}{
		"as it should be": {func(_, _ *trial.Damage) {}, ""},
		"none accepted":   {func(off, _ *trial.Damage) { off.Applied = 0 }, "raft-1s/off: stale writes accepted"},
		"none reused":     {func(off, _ *trial.Damage) { off.Reused = 0 }, "raft-1s/off: numbers reused"},
		"accepted":        {func(_, on *trial.Damage) { on.Applied = 1 }, "raft-1s/on: stale writes accepted"},
		"reused":          {func(_, on *trial.Damage) { on.Reused = 1 }, "raft-1s/on: numbers reused"},
		"none refused":    {func(_, on *trial.Damage) { on.Refused = 0 }, "raft-1s/on: stale writes refused"},
	} {
		var all []trial.Outcome
		for _, tr := range fencingOff().Trials(experiment.Full) {
			o := trial.Outcome{Trial: tr, Damage: trial.Damage{Refused: 9}}
			if tr.Unfenced {
				o.Damage = trial.Damage{Applied: 9, Reused: 9}
			}
			all = append(all, o)
		}
		find := func(name string) *trial.Damage {
			return &all[slices.IndexFunc(all, func(o trial.Outcome) bool { return o.Name == name })].Damage
		}
		c.change(find("raft-1s/off"), find("raft-1s/on"))
		bars := barsOf(fencingOff(), all...)
		if got := strings.Join(missed(bars), ","); got != c.want {
			t.Errorf("%s: missed %q, want %q", name, got, c.want)
		}
	}
}

// For a failed disk only those calls count that began and ended while it failed.
func TestCountAsked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := history.Create(filepath.Join(dir, trial.HistoryDir), "calls")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []history.Call{
		{Start: at(9 * sec), End: at(11 * sec), First: 1, Last: 1},
		{Start: at(11 * sec), End: at(12 * sec), Error: "nobody leads"},
		{Start: at(12 * sec), End: at(13 * sec), Unknown: true},
		{Start: at(13 * sec), End: at(14 * sec), First: 2, Last: 2},
		{Start: at(19 * sec), End: at(21 * sec), First: 3, Last: 3},
		{Start: at(31 * sec), End: at(32 * sec), Error: "nobody leads"},
	} {
		if err := w.Write(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	rounds := []trial.Round{{Begun: at(10 * sec), Healed: at(20 * sec)}, {Begun: at(30 * sec), Healed: at(40 * sec)}}
	if err := countAsked(dir, rounds); err != nil {
		t.Fatal(err)
	}
	if rounds[0].Asked != 3 || rounds[0].Answered != 1 || rounds[1].Asked != 1 || rounds[1].Answered != 0 {
		t.Errorf("%+v", rounds)
	}
	if err := os.WriteFile(filepath.Join(dir, trial.HistoryDir, "calls.ndjson"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := countAsked(dir, rounds); err == nil {
		t.Error("a history that is no JSON was counted")
	}
}
