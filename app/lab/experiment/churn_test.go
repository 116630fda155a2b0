package experiment

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/app/fleet/api"
	"github.com/tenurehq/tenure/app/lab/check"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

func at(d time.Duration) clock.Instant { return clock.Instant(d) }

func token(n int) fence.Token { return fence.Token(n) }

// Who is killed or leaves stands at the end of the line again; who stands there while
// others win has waited, also if it never wins.
func TestTurns(t *testing.T) {
	t.Parallel()
	round := func(killed, left, won string) Round { return Round{Node: killed, Left: left, Successor: won} }
	for _, tt := range []struct {
		name            string
		rounds          []Round
		wins            int
		inLine, between int
	}{
		{"in turn", []Round{round("a", "", "b"), round("b", "", "c"), round("c", "", "a"), round("a", "", "b")}, 3, 2, 3},
		{"c never", []Round{round("a", "", "b"), round("b", "", "a"), round("a", "", "b"), round("b", "", "a")}, 2, 4, 4},
		{"c leaves", []Round{round("a", "", "b"), round("b", "c", "a"), round("a", "", "b"), round("b", "", "c")}, 3, 2, 4},
	} {
		got := turnsOf([]string{"a", "b", "c"}, tt.rounds)
		if len(got.wins) != tt.wins || got.inLine != tt.inLine || got.between != tt.between {
			t.Errorf("%s: %+v, want %d winners, %d rounds in line, %d between wins", tt.name, got, tt.wins, tt.inLine, tt.between)
		}
	}
}

// storming is a trial of twelve rounds, everybody in turn: the vacancies are 10 s apart,
// an election takes 5 ms, and a term 8 s.
func storming(name string, nodes, triesEach int) Outcome {
	const rounds = 12
	o := Outcome{Trial: Trial{Name: name, Engine: etcdEngine, Nodes: nodes, Rounds: rounds}, Churn: &churned{Storm: counted{"Txn": 1}}}
	o.Report.Terms = []check.Term{{Token: 1, Node: "node-1", Began: at(sec), Ended: at(8 * sec)}}
	ids := nodeNames(nodes)
	for i := range rounds {
		o.Rounds = append(o.Rounds, Round{Node: ids[i%nodes], Token: uint64(i + 1), Successor: ids[(i+1)%nodes], Next: uint64(i + 2)})
		vacant := at(time.Duration(i+1) * 10 * sec)
		o.Report.Terms = append(o.Report.Terms, check.Term{Token: token(i + 2), Node: ids[(i+1)%nodes], Vacant: vacant, Began: vacant.Add(5 * time.Millisecond), Ended: vacant.Add(8 * sec)})
		o.Churn.Tries, o.Churn.Calls = append(o.Churn.Tries, triesEach), append(o.Churn.Calls, triesEach)
	}
	return o
}

// another lets one more term begin in the last round, whose own ends at 128 s.
func another(o *Outcome, when time.Duration) {
	o.Report.Terms = append(o.Report.Terms, check.Term{Token: 14, Vacant: at(when), Began: at(when)})
}

// A vacancy's calls are the tries and reads of those who stood in line when it came, up
// to a second after it was over: not keep-alives, not the line, not those who join.
func TestElecting(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	o := storming("x", 3, 0)
	calls := []nodeCall{
		{"node-2", 2, at(sec), api.CallOpen},
		{"node-3", 3, at(sec), api.CallOpen},
		{"node-2", 2, at(2 * sec), api.CallAcquire},          // of the first election
		{"node-2", 2, at(10*sec - 2*ms), api.CallAcquire},    // before it was told
		{"node-3", 3, at(10*sec + 1*ms), api.CallKeepAlive},  // as ever
		{"node-3", 3, at(10*sec + 2*ms), api.CallAcquire},    // in vain
		{"node-3", 3, at(10*sec + 3*ms), api.CallRead},       // why
		{"node-1", 9, at(10*sec + 4*ms), api.CallOpen},       // is back
		{"node-1", 9, at(10*sec + 5*ms), api.CallRead},       // looks around
		{"node-3", 3, at(10*sec + 6*ms), api.CallLine},       // ahead of time
		{"node-3", 3, at(15 * sec), api.CallRead},            // long after
		{"node-1", 9, at(20*sec + 1*ms), api.CallAcquire},    // stands in line by now
		{"node-3", 3, at(20*sec + 1200*ms), api.CallAcquire}, // too late
	}
	tries, all := electing(calls, o.Report.Terms, o.Rounds[:2])
	if !slices.Equal(tries, []int{2, 1}) || !slices.Equal(all, []int{3, 1}) {
		t.Errorf("tries %v, calls %v; want [2 1] and [3 1]", tries, all)
	}
}

// What etcd counts is read by method, and the rest is left out.
func TestReadCounted(t *testing.T) {
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
	r := readCounted(after).rate(readCounted(before), 5*sec)
	if r["Txn"] != 1 || r["LeaseKeepAlive"] != 4 || r[proposals] != 0.4 || r.calls() != 5 || len(r) != 3 {
		t.Errorf("%v", r)
	}
}

// Nine nodes that cost the engine more than 1.2 times what three do fall short, as does
// a herd that cannot be told from a line, two winners in a round, and a slow election.
func TestJudgeChurn(t *testing.T) {
	t.Parallel()
	short := func(change func([]Outcome)) (names []string) {
		all := []Outcome{storming("etcd-9/in-line", 9, 1), storming("etcd-3/in-line", 3, 1), storming("etcd-9/all-at-once", 9, 8)}
		all[2].Plant = []string{"herd"}
		change(all)
		bars, _ := judgeChurn(all)
		for _, b := range bars {
			if !b.OK {
				names = append(names, b.Name)
			}
		}
		return names
	}
	for name, tt := range map[string]struct {
		change func([]Outcome)
		want   string
	}{
		"as it should be": {func([]Outcome) {}, ""},
		"costly":          {func(all []Outcome) { all[0].Churn.Calls = []int{1, 1, 1, 2} }, "calls per vacancy, 9 nodes to 3"},
		"not measured":    {func(all []Outcome) { all[1].Churn = nil }, "calls per vacancy, 9 nodes to 3"},
		"blind":           {func(all []Outcome) { all[2].Churn.Tries = []int{1, 1} }, "tries per vacancy, all at once to in line, 9 nodes"},
		"two winners":     {func(all []Outcome) { another(&all[0], 127*sec) }, "etcd-9/in-line: one winner"},
		"two in turn":     {func(all []Outcome) { another(&all[0], 129*sec) }, ""},
		"slow": {func(all []Outcome) {
			all[1].Report.Terms[2].Began = at(20*sec + 600*time.Millisecond)
		}, "etcd-3/in-line: election p95"},
		"unseen": {func(all []Outcome) { all[1].Report.Terms[2].Vacant, all[1].Report.Terms[3].Vacant = 0, 0 }, "etcd-3/in-line: election p95,etcd-3/in-line: election max"},
		// A quick form has too few rounds to compare means.
		"few": {func(all []Outcome) {
			all[0].Trial.Rounds, all[0].Rounds, all[0].Report.Terms, all[0].Churn.Calls = 2, all[0].Rounds[:2], all[0].Report.Terms[:3], []int{1, 2}
		}, ""},
	} {
		if got := strings.Join(short(tt.change), ","); got != tt.want {
			t.Errorf("%s: short is %q, want %q", name, got, tt.want)
		}
	}
}

// Somebody who is passed over for more than 18 rounds, or never wins, falls short.
func TestFairness(t *testing.T) {
	t.Parallel()
	judge := func(nodes int) (short []string) {
		o := Outcome{Trial: Trial{Name: "etcd-9/in-line", Engine: etcdEngine, Nodes: 9, Rounds: 40}}
		o.Report.Terms = []check.Term{{Token: 1, Began: at(sec)}}
		for i := range 40 {
			o.Rounds = append(o.Rounds, Round{Node: nodeNames(9)[i%nodes], Token: uint64(i + 1), Successor: nodeNames(9)[(i+1)%nodes], Next: uint64(i + 2)})
			when := at(time.Duration(i+2) * 5 * sec)
			o.Report.Terms = append(o.Report.Terms, check.Term{Token: token(i + 2), Vacant: when, Began: when.Add(time.Millisecond)})
		}
		bars, _ := judgeChurn([]Outcome{o})
		for _, b := range bars {
			if !b.OK && strings.HasPrefix(b.Name, "etcd-9/in-line: ") {
				short = append(short, b.Name)
			}
		}
		return short
	}
	if short := judge(9); len(short) > 0 {
		t.Errorf("everybody in turn: short is %v", short)
	}
	if short := judge(8); !slices.Equal(short, []string{"etcd-9/in-line: nodes that won", "etcd-9/in-line: longest in line"}) {
		t.Errorf("one is never chosen: short is %v", short)
	}
}
