package churn

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
	"github.com/tenurehq/tenure/reference/api"
)

const sec = time.Second

// barsOf returns the bars of the experiment, without those of the checks.
func barsOf(all ...trial.Outcome) []measure.Threshold {
	return slices.DeleteFunc(Experiment().Summarize(all).Thresholds, func(t measure.Threshold) bool { return strings.HasSuffix(t.Name, ": checks as expected") })
}

func at(d time.Duration) clock.Instant { return clock.Instant(d) }

func token(n int) fence.Token { return fence.Token(n) }

// A node that is killed or leaves starts at the end of the line again. A node that waits while
// others win has waited, even if it never wins.
func TestTurns(t *testing.T) {
	t.Parallel()
	round := func(killed, left, won string) trial.Round {
		return trial.Round{Node: killed, Left: left, Successor: won}
	}
	for _, tt := range []struct {
		name            string
		rounds          []trial.Round
		wins            int
		inLine, between int
	}{
		{"in turn", []trial.Round{round("a", "", "b"), round("b", "", "c"), round("c", "", "a"), round("a", "", "b")}, 3, 2, 3},
		{"c never", []trial.Round{round("a", "", "b"), round("b", "", "a"), round("a", "", "b"), round("b", "", "a")}, 2, 4, 4},
		{"b leaves when it has won", []trial.Round{round("a", "b", "b"), round("c", "", "a"), round("a", "", "c"), round("c", "", "b")}, 3, 3, 3},
		{"c leaves", []trial.Round{round("a", "", "b"), round("b", "c", "a"), round("a", "", "b"), round("b", "", "c")}, 3, 2, 4},
	} {
		got := turnsOf([]string{"a", "b", "c"}, tt.rounds)
		if len(got.wins) != tt.wins || got.inLine != tt.inLine || got.between != tt.between {
			t.Errorf("%s: %+v, want %d winners, %d rounds in line, %d between wins", tt.name, got, tt.wins, tt.inLine, tt.between)
		}
	}
}

// storming returns a trial of twelve rounds in which all nodes win in turn. Vacancies are 10 s
// apart, an election takes 5 ms and a term 8 s; a kill is 3 s before the next vacancy.
func storming(name string, nodes, triesEach int) trial.Outcome {
	const rounds = 12
	o := trial.Outcome{Trial: trial.Trial{Name: name, Engine: trial.Etcd, TTL: 2 * sec, Nodes: nodes, Rounds: rounds}, Cost: &trial.Cost{Seconds: 120, Calm: map[string]float64{"Txn": float64(nodes)}, Storm: map[string]float64{"Txn": float64(nodes + 1)}}}
	o.Report.Terms = []verdict.Term{{Token: 1, Node: "node-1", Began: at(sec), Ended: at(8 * sec)}}
	ids := nodeNames(nodes)
	for i := range rounds {
		o.Rounds = append(o.Rounds, trial.Round{Node: ids[i%nodes], Token: token(i + 1), Successor: ids[(i+1)%nodes], Next: token(i + 2)})
		vacant := at(time.Duration(i+1) * 10 * sec)
		o.Report.Faults = append(o.Report.Faults, history.Fault{Class: history.ClassKill, Target: ids[i%nodes], Begun: vacant.Add(-3 * sec)})
		o.Report.Terms = append(o.Report.Terms, verdict.Term{Token: token(i + 2), Node: ids[(i+1)%nodes], Vacant: vacant, Began: vacant.Add(5 * time.Millisecond), Ended: vacant.Add(8 * sec)})
		o.Cost.Tries, o.Cost.Calls = append(o.Cost.Tries, triesEach), append(o.Cost.Calls, triesEach)
	}
	return o
}

// another adds one more term to the last round, whose first term ends at 128 s by a cause.
func another(o *trial.Outcome, when time.Duration, cause string) {
	o.Report.Terms[len(o.Report.Terms)-1].Cause = cause
	o.Report.Terms = append(o.Report.Terms, verdict.Term{Token: 14, Vacant: at(when), Began: at(when)})
}

// slow makes a trial's elections take longer from a round on.
func slow(o *trial.Outcome, from int, by time.Duration) {
	for i := from; i < len(o.Report.Terms); i++ {
		o.Report.Terms[i].Began = o.Report.Terms[i].Began.Add(by)
	}
}

// A vacancy's calls are the tries and reads of the nodes that were in line when it began, until
// a second after it ended: not keep-alives, not reads of the line, not calls of joining nodes.
func TestCallsPerVacancy(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	o := storming("x", 3, 0)
	calls := []nodeCall{
		{"node-2", 2, at(sec), api.CallOpen},
		{"node-3", 3, at(sec), api.CallOpen},
		{"node-2", 2, at(2 * sec), api.CallAcquire},          // of the first election
		{"node-2", 2, at(10*sec - 2*ms), api.CallAcquire},    // before the vacancy was recorded
		{"node-3", 3, at(10*sec + 1*ms), api.CallKeepAlive},  // not counted
		{"node-3", 3, at(10*sec + 2*ms), api.CallAcquire},    // fails
		{"node-3", 3, at(10*sec + 3*ms), api.CallRead},       // counted
		{"node-1", 9, at(10*sec + 4*ms), api.CallOpen},       // restarted
		{"node-1", 9, at(10*sec + 5*ms), api.CallRead},       // joining
		{"node-3", 3, at(10*sec + 6*ms), api.CallLine},       // the line
		{"node-3", 3, at(15 * sec), api.CallRead},            // long after
		{"node-1", 9, at(20*sec + 1*ms), api.CallAcquire},    // in line by now
		{"node-3", 3, at(20*sec + 1200*ms), api.CallAcquire}, // too late
	}
	o.Rounds = o.Rounds[:2]
	tries, all := callsPerVacancy(calls, o)
	if !slices.Equal(tries, []int{2, 1}) || !slices.Equal(all, []int{3, 1}) {
		t.Errorf("tries %v, calls %v; want [2 1] and [3 1]", tries, all)
	}
}

// etcd's counters are read by method; other metrics are ignored.
func TestParseCounted(t *testing.T) {
	t.Parallel()
	const before = `# HELP grpc_server_started_total x
grpc_server_started_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 10
grpc_server_started_total{grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 0
grpc_server_handled_total{grpc_code="OK",grpc_method="Txn"} 9
etcd_server_proposals_committed_total 4
`
	const after = `grpc_server_started_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 1.5e+01
grpc_server_started_total{grpc_method="LeaseKeepAlive",grpc_service="etcdserverpb.Lease",grpc_type="bidi_stream"} 20
etcd_server_proposals_committed_total 6
`
	r := parseCounted(after).rate(parseCounted(before), 5*sec)
	if r["Txn"] != 1 || r["LeaseKeepAlive"] != 4 || r[proposals] != 0.4 || r.calls() != 5 || len(r) != 3 {
		t.Errorf("%v", r)
	}
}

// judged returns the missed bars of experiment 6, after a change to trials that meet all.
func judged(change func([]trial.Outcome)) string {
	all := []trial.Outcome{storming("etcd-9/in-line", 9, 1), storming("etcd-3/in-line", 3, 1), storming("etcd-9/all-at-once", 9, 8), storming("raft-9", 9, 0)}
	all[2].Plant = []string{"herd"}
	all[3].Engine, all[3].Cost = trial.Raft, nil
	change(all)
	bars := barsOf(all...)
	var short []string
	for _, b := range bars {
		if !b.OK {
			short = append(short, b.Name)
		}
	}
	return strings.Join(short, ",")
}

// Each bar of experiment 6 is met by good trials, and missed by trials that differ in the one
// thing that the bar is about.
func TestJudgeChurn(t *testing.T) {
	t.Parallel()
	const own = "calls per vacancy by etcd's count, less beats and those of a calm, 9 nodes to 3"
	for name, tt := range map[string]struct {
		change func([]trial.Outcome)
		want   string
	}{
		"as it should be":   {func([]trial.Outcome) {}, ""},
		"costly":            {func(all []trial.Outcome) { all[0].Cost.Calls = []int{1, 1, 1, 2} }, "calls per vacancy, 9 nodes to 3"},
		"costly for etcd":   {func(all []trial.Outcome) { all[0].Cost.Storm["Range"] = 0.3 }, own},
		"a calm that costs": {func(all []trial.Outcome) { all[0].Cost.Storm["Range"], all[0].Cost.Calm["Range"] = 9, 9 }, ""},
		"the dead do not beat": {func(all []trial.Outcome) {
			// Half a beat a second, which is one keep-alive and one read.
			all[0].Cost.Calm["LeaseKeepAlive"], all[0].Cost.Storm["LeaseKeepAlive"] = 9, 8.5
			all[0].Cost.Storm["Txn"] -= 0.5
		}, ""},
		"not measured": {func(all []trial.Outcome) { all[1].Cost = nil }, "calls per vacancy, 9 nodes to 3," + own},
		"blind":        {func(all []trial.Outcome) { all[2].Cost.Tries = []int{1, 1} }, "tries per vacancy, all at once to in line, 9 nodes"},
		"two winners":  {func(all []trial.Outcome) { another(&all[0], 127*sec, "expired") }, "etcd-9/in-line: one winner,etcd-9/in-line: terms lost without a kill or a leave"},
		// One term of twelve is more than load may end, one of twenty is not.
		"a term lost to load": {func(all []trial.Outcome) { another(&all[0], 129*sec, "expired") }, "etcd-9/in-line: terms lost without a kill or a leave"},
		"on Raft, too":        {func(all []trial.Outcome) { another(&all[3], 129*sec, "lost") }, "raft-9: terms lost without a kill or a leave"},
		"a leader that left": {func(all []trial.Outcome) {
			all[0].Rounds[11].Left = all[0].Rounds[11].Successor
			another(&all[0], 128*sec+5*time.Millisecond, "transferred")
		}, ""},
		"a leader that left and kept the group": {func(all []trial.Outcome) {
			all[0].Rounds[11].Left = all[0].Rounds[11].Successor
			another(&all[0], 129*sec, "resigned")
		}, "etcd-9/in-line: terms lost without a kill or a leave"},
		"a vacancy that nobody saw for long": {func(all []trial.Outcome) {
			all[1].Report.Faults[4].Begun = all[1].Report.Faults[4].Begun.Add(-3 * sec)
		}, "etcd-3/in-line: from the kill to the next term"},
		"another left": {func(all []trial.Outcome) {
			all[0].Rounds[11].Left = all[0].Rounds[11].Node
			another(&all[0], 129*sec, "transferred")
		}, "etcd-9/in-line: terms lost without a kill or a leave"},
		"slow":          {func(all []trial.Outcome) { slow(&all[1], 2, 600*time.Millisecond) }, "etcd-3/in-line: election p95"},
		"slow Raft":     {func(all []trial.Outcome) { slow(&all[3], 2, 1600*time.Millisecond) }, "raft-9: election p95"},
		"one very slow": {func(all []trial.Outcome) { slow(&all[1], 12, 2*sec) }, "etcd-3/in-line: election p95,etcd-3/in-line: election max"},
		"Raft is stuck": {func(all []trial.Outcome) { slow(&all[3], 12, 4*sec) }, "raft-9: election p95,raft-9: election max"},
		"one unseen":    {func(all []trial.Outcome) { all[1].Report.Terms[2].Vacant = 0 }, "etcd-3/in-line: elections measured"},
		"no kill seen":  {func(all []trial.Outcome) { all[3].Report.Faults = all[3].Report.Faults[1:] }, "raft-9: elections measured"},
		"one never won on Raft": {func(all []trial.Outcome) {
			for i := range all[3].Rounds {
				if r := &all[3].Rounds[i]; r.Successor == "node-5" {
					r.Successor = "node-4"
				}
			}
		}, "raft-9: nodes that won"},
		// The quick form has too few rounds to compare means or to judge load.
		"few": {func(all []trial.Outcome) {
			o := &all[0]
			o.Trial.Rounds, o.Rounds, o.Report.Terms, o.Cost.Calls = 2, o.Rounds[:2], o.Report.Terms[:3], []int{1, 2}
		}, ""},
	} {
		if got := judged(tt.change); got != tt.want {
			t.Errorf("%s: missed %q, want %q", name, got, tt.want)
		}
	}
	w := winners{further: map[string]int{"expired": 1}}
	if _, ok := w.lost(loadBar); !ok {
		t.Error("one term in twenty is more than load may end")
	}
	w.further = map[string]int{"unhealthy": 1}
	if words, ok := w.lost(1000); ok || words != "1: unhealthy 1" {
		t.Errorf("a leader that gave up by itself is put down to load: %s", words)
	}
}

// A node that waits for more than 18 rounds, or never wins, is a missed bar.
func TestFairness(t *testing.T) {
	t.Parallel()
	judge := func(nodes int) (short []string) {
		o := trial.Outcome{Trial: trial.Trial{Name: "etcd-9/in-line", Engine: trial.Etcd, TTL: 2 * sec, Nodes: 9, Rounds: 40}}
		o.Report.Terms = []verdict.Term{{Token: 1, Began: at(sec)}}
		for i := range 40 {
			o.Rounds = append(o.Rounds, trial.Round{Node: nodeNames(9)[i%nodes], Token: token(i + 1), Successor: nodeNames(9)[(i+1)%nodes], Next: token(i + 2)})
			when := at(time.Duration(i+2) * 5 * sec)
			o.Report.Terms = append(o.Report.Terms, verdict.Term{Token: token(i + 2), Vacant: when, Began: when.Add(time.Millisecond)})
			o.Report.Faults = append(o.Report.Faults, history.Fault{Class: history.ClassKill, Target: nodeNames(9)[i%nodes], Begun: when.Add(-2 * sec)})
		}
		bars := barsOf(o)
		for _, b := range bars {
			if !b.OK && strings.HasPrefix(b.Name, "etcd-9/in-line: ") {
				short = append(short, b.Name)
			}
		}
		return short
	}
	if short := judge(9); len(short) > 0 {
		t.Errorf("everybody in turn: missed %v", short)
	}
	if short := judge(8); !slices.Equal(short, []string{"etcd-9/in-line: nodes that won", "etcd-9/in-line: longest in line"}) {
		t.Errorf("one is never chosen: missed %v", short)
	}
}

// The bar is on rounds in line, not on rounds between two wins. In a strict line of nine, where
// a random node leaves in every other round and joins again at the end, no node waits for more
// than nine rounds in line; but in most runs of 120 rounds some node has more than 18 rounds
// between two wins.
func TestLineOfThoseWhoLeave(t *testing.T) {
	t.Parallel()
	long := 0
	const runs = 100
	for seed := range uint64(runs) {
		chance := rand.New(rand.NewPCG(seed, 6))
		line := nodeNames(9)
		var rounds []trial.Round
		for i := range 120 {
			r := trial.Round{Node: line[0], Successor: line[1]} // the first leads
			line = append(line[1:], r.Node)
			if i%2 == 1 {
				n := 1 + chance.IntN(len(line)-2) // neither the winner nor the killed node
				r.Left = line[n]
				line = append(slices.Delete(line, n, n+1), r.Left)
			}
			rounds = append(rounds, r)
		}
		got := turnsOf(nodeNames(9), rounds)
		if got.inLine > 9 {
			t.Errorf("seed %d: %d rounds in line", seed, got.inLine)
		}
		if got.between > waitBar {
			long++
		}
	}
	if t.Logf("%d of %d runs have more than %d rounds between two wins", long, runs, waitBar); long <= runs/2 {
		t.Errorf("only %d of %d runs have more than %d rounds between two wins: judge those, too", long, runs, waitBar)
	}
}
