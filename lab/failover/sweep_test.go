package failover

import (
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/disturb"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
)

const sec = time.Second

func at(d time.Duration) clock.Instant { return clock.Instant(d) }

func token(n int) fence.Token { return fence.Token(n) }

// The knee is the smallest TTL from which on there were no false failovers. A TTL without any
// is not the knee if a longer one had some.
func TestKnee(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		counts map[time.Duration]int
		want   time.Duration
	}{
		{map[time.Duration]int{2 * sec: 9, 3 * sec: 1, 10 * sec: 0, 30 * sec: 0}, 10 * sec},
		{map[time.Duration]int{2 * sec: 0, 3 * sec: 1, 10 * sec: 0}, 10 * sec},
		{map[time.Duration]int{2 * sec: 0, 3 * sec: 0}, 2 * sec},
		{map[time.Duration]int{2 * sec: 0, 3 * sec: 1}, 0},
		{nil, 0},
	} {
		if got := kneeOf(tt.counts); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.counts, got, tt.want)
		}
	}
}

// 99.995 % of thirty days leave 129.6 s without a leader, 32.4 s for each of four crashes.
// Twice the knee is recommended if its failovers fit, otherwise the knee, otherwise nothing.
func TestObjective(t *testing.T) {
	t.Parallel()
	month, crash := ours().budget()
	if month != 129600*time.Millisecond || crash != 32400*time.Millisecond {
		t.Errorf("a month may cost %v, a crash %v", month, crash)
	}
	a, enough := ours().serves(8600 * time.Millisecond)
	if want := 1 - 34.4/2592000; a < want-1e-12 || a > want+1e-12 || !enough {
		t.Errorf("four failovers of 8.6 s: %v, %v", a, enough)
	}
	if _, enough := ours().serves(crash + 1); enough {
		t.Error("more than a crash may cost serves")
	}
	ttls := []time.Duration{30 * sec, 2 * sec, 3 * sec, 8 * sec, 10 * sec}
	c := cost{times: 1, more: 700 * time.Millisecond}
	for knee, want := range map[time.Duration]time.Duration{2 * sec: 8 * sec, 3 * sec: 8 * sec, 8 * sec: 30 * sec, 10 * sec: 30 * sec, 30 * sec: 30 * sec} {
		if got := recommend(ours(), ttls, knee, c.failover); got != want {
			t.Errorf("knee %v: %v, want %v", knee, got, want)
		}
	}
	c.more = 3 * sec // now a TTL of 30 s is too long, and there is no other of at least 20 s
	if got := recommend(ours(), ttls, 10*sec, c.failover); got != 10*sec {
		t.Errorf("the knee has to do: %v", got)
	}
	if got := recommend(ours(), ttls, 30*sec, c.failover); got != 0 {
		t.Errorf("nothing serves, and %v was recommended", got)
	}
}

// busied returns a trial that was disturbed from 10 s to 20 s.
func busied(ttl time.Duration, began ...time.Duration) trial.Outcome {
	o := trial.Outcome{Trial: trial.Trial{Name: "CPU", Engine: trial.Etcd, TTL: ttl, Disturbed: disturb.CPU, For: 10 * time.Minute}}
	o.Report.Faults = []history.Fault{{Name: "busy-" + disturb.CPU, Begun: at(10 * sec), Healed: at(20 * sec), Evidence: "x"}}
	for i, b := range began {
		o.Report.Terms = append(o.Report.Terms, verdict.Term{Token: token(i + 1), Began: at(b), Ended: at(30 * sec), Cause: "expired"})
		if i > 0 {
			o.Report.Terms[i-1].Ended = at(b)
		}
	}
	return o
}

// A failover is false from the beginning of the disturbance until its effects are over. The
// first term is not a failover.
func TestFalseFailovers(t *testing.T) {
	t.Parallel()
	n, causes := falseFailovers(busied(2*sec, sec, 11*sec, 15*sec, 22*sec, 24*sec))
	if n != 3 || causes["expired"] != 3 {
		t.Errorf("%d false failovers, %v; want 3 that had expired", n, causes)
	}
	if n, _ := falseFailovers(busied(2*sec, sec)); n != 0 {
		t.Errorf("%d false failovers of a leader that stayed", n)
	}
	// A lost leader counts even if no other follows, or only after the effects are over.
	for name, o := range map[string]trial.Outcome{"nobody": busied(2*sec, sec), "late": busied(2*sec, sec, 25*sec), "undisturbed": busied(2*sec, sec)} {
		o.Report.Terms[0].Ended = at(15 * sec)
		if name == "undisturbed" {
			o.Report.Terms[0].Ended, o.Report.Faults = at(30*sec), nil
		}
		if n, causes := falseFailovers(o); n != 1 || len(causes) != 1 {
			t.Errorf("%s: %d false failovers, %v; want 1", name, n, causes)
		}
	}
}

// The knee and the recommendation follow from the false failovers. If no TTL keeps its leader
// both bars are missed.
func TestJudgeSweep(t *testing.T) {
	t.Parallel()
	killedAt := func(ttl, took time.Duration) trial.Outcome {
		o := trial.Outcome{Trial: trial.Trial{Name: "kill", Engine: trial.Etcd, TTL: ttl, Rounds: 1}, Rounds: []trial.Round{{Token: 1}}}
		// The successor's first attempt fails and does not count.
		o.Report.Terms = []verdict.Term{{Token: 1, Attempts: 1, LastAttempt: at(sec)}, {Token: 2, Attempts: 2, FirstAttempt: at(sec + took/2)}}
		o.Effects = []trial.Effect{{Token: 3, First: at(20 * sec)}, {Token: 2, First: at(sec + took), Last: at(9 * sec)}, {Token: 1, Last: at(sec)}}
		return o
	}
	value := func(name string, all ...trial.Outcome) (string, bool) {
		bars := Sweep().Summarize(all).Thresholds
		for _, b := range bars {
			if strings.Contains(b.Name, name) {
				return b.Value, b.OK
			}
		}
		return "", false
	}
	all := []trial.Outcome{killedAt(2*sec, 2500*time.Millisecond), busied(2*sec, sec, 12*sec), busied(3*sec, sec), busied(8*sec, sec)}
	if v, ok := value("etcd: the knee", all...); v != "3s" || !ok {
		t.Errorf("the knee: %s, %v", v, ok)
	}
	if v, ok := value("that serves", all...); !strings.HasPrefix(v, "8s: 99.9987 %") || !ok {
		t.Errorf("recommended: %s, %v", v, ok)
	}
	all[3] = busied(8*sec, sec, 13*sec)
	if v, ok := value("etcd: the knee", all...); v != "none" || ok {
		t.Errorf("no TTL kept its leader, and the knee is %s, %v", v, ok)
	}
	if v, ok := value("write to write", killedAt(2*sec, 5*sec)); ok {
		t.Errorf("a failover of 5 s at 2 s passes: %s", v)
	}
	silent := killedAt(2*sec, sec)
	if silent.Effects = silent.Effects[2:]; len(silent.Effects) != 1 {
		t.Fatal("who else wrote?")
	}
	if v, ok := value("write to write", silent); ok {
		t.Errorf("nobody wrote after the kill, and it passes: %s", v)
	}
}

// Nodes accept every timing of the sweep.
func TestSweepTimings(t *testing.T) {
	t.Parallel()
	for _, size := range []experiment.Size{experiment.Quick, experiment.Full} {
		for _, tr := range sweepTrials(size) {
			err := lease.Timing{TTL: tr.TTL, Beat: tr.Beat, Misses: tr.Misses}.Resolve().Validate()
			if tr.Engine == trial.Raft {
				err = raft.Timing{Heartbeat: tr.TTL, LeaderLease: 3 * tr.TTL / 4}.Resolve().Validate()
			}
			if err != nil {
				t.Errorf("%s: %v", tr.Name, err)
			}
		}
	}
}
