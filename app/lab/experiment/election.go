package experiment

import (
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure/app/lab/check"
	"github.com/tenurehq/tenure/app/lab/plot"
	"github.com/tenurehq/tenure/clock"
)

// elections are how long the elections of a trial took, from when the vacancy was first
// seen to the beginning of the term that ended it. A term that began before anybody had
// told of the vacancy took no time that could be seen. With Raft it is from the kill.
func elections(o Outcome) (s series) {
	for _, r := range o.Rounds {
		for _, t := range o.Report.Terms {
			if uint64(t.Token) != r.Next || t.Began == 0 {
				continue
			}
			since := t.Vacant
			if o.Engine == raftEngine {
				since = killedAt(o.Report.Faults, r.Node, t.Began)
			}
			if since > 0 {
				s = append(s, max(0, t.Began.Sub(since)))
			}
		}
	}
	return s
}

// killedAt is when a node was last killed before an instant.
func killedAt(faults []check.Fault, node string, before clock.Instant) (at clock.Instant) {
	for _, f := range faults {
		if f.Class == check.ClassKill && f.Target == node && f.Begun < before {
			at = max(at, f.Begun)
		}
	}
	return at
}

// winners counts the rounds in which the vacancy had one winner: a term began, and none
// beside it. One that began after that had ended is the winner of another vacancy, which
// nobody's death led to: those are further.
func winners(rounds []Round, terms []check.Term) (one, further int) {
	for i, r := range rounds {
		var last *check.Term
		alone := true
		for j := range terms {
			t := &terms[j]
			if uint64(t.Token) <= r.Token || i+1 < len(rounds) && uint64(t.Token) > rounds[i+1].Token || t.Began == 0 {
				continue
			}
			if last != nil {
				further++
				alone = alone && last.Ended <= t.Began
			}
			last = t
		}
		if last != nil && alone {
			one++
		}
	}
	return one, further
}

// turns is who got a turn, and how long everybody waited for one.
type turns struct {
	wins map[string]int
	// inLine is the longest that anybody stood in line while others won, in rounds;
	// whoever is killed or leaves stands at the end again. between is the longest from one
	// win to the next, whatever became of the node in between.
	inLine, between int
}

func turnsOf(nodes []string, rounds []Round) turns {
	t := turns{wins: map[string]int{}}
	stood, since := map[string]int{}, map[string]int{}
	for _, r := range rounds {
		stood[r.Node], stood[r.Left] = 0, 0
		t.wins[r.Successor]++
		for _, id := range nodes {
			since[id]++
			if id != r.Node && id != r.Left {
				stood[id]++
			}
			// The winner has waited until this round, and begins anew.
			t.between = max(t.between, since[id])
			if id == r.Successor {
				t.inLine = max(t.inLine, stood[id])
				stood[id], since[id] = 0, 0
			}
		}
	}
	for _, id := range nodes {
		t.inLine = max(t.inLine, stood[id])
	}
	return t
}

func nodeNames(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint("node-", i+1))
	}
	return ids
}

// mean of counts.
func mean(counts []int) float64 {
	sum := 0
	for _, c := range counts {
		sum += c
	}
	return float64(sum) / float64(max(1, len(counts)))
}

const (
	electionBar  = 500 * time.Millisecond
	electionMost = 2 * time.Second
	electionAim  = 50 * time.Millisecond
	waitBar      = 18  // rounds
	callsBar     = 1.2 // times the calls with three nodes
)

func judgeChurn(all []Outcome) ([]Threshold, []Table) {
	var bars []Threshold
	latency := Table{Title: "election: vacancy seen to term begun", Head: []string{"trial", "n", "p50", "p95", "p99", "max", "aim"}}
	who := Table{Title: "whose turn", Head: []string{"trial", "rounds", "one winner", "further failovers, by load", "nodes that won", "longest in line (rounds)", "longest between wins"}}
	cost := Table{Title: "calls to the engine; those of each vacancy by the nodes' count, a second's by etcd's own", Head: []string{"trial", "tries/vacancy", "most", "calls/vacancy", "calls/s calm", "calls/s in the storm", "more/vacancy, joining included", "commits/vacancy"}}
	for _, o := range all {
		e, t := elections(o), turnsOf(nodeNames(o.Nodes), o.Rounds)
		one, further := winners(o.Rounds, o.Report.Terms)
		name, aim := o.Name, fmt.Sprintf("p99 %s: %v", ms(electionAim), len(e) > 0 && e.at(0.99) <= electionAim)
		if o.Engine == raftEngine {
			name, aim = name+", from the kill", ""
		}
		latency.Rows = append(latency.Rows, []string{name, fmt.Sprint(len(e)), ms(e.at(0.5)), ms(e.at(0.95)), ms(e.at(0.99)), ms(e.at(1)), aim})
		who.Rows = append(who.Rows, []string{o.Name, fmt.Sprint(len(o.Rounds)), fmt.Sprint(one), fmt.Sprint(further), fmt.Sprintf("%d of %d", len(t.wins), o.Nodes), fmt.Sprint(t.inLine), fmt.Sprint(t.between)})
		bars = append(bars, count(o.Name+": one winner", one, o.Trial.Rounds))
		if o.Engine == etcdEngine && len(o.Plant) == 0 {
			bars = append(bars, judgeElections(o, e)...)
			if o.Nodes > 3 && o.Trial.Rounds > few {
				bars = append(bars, count(o.Name+": nodes that won", len(t.wins), o.Nodes),
					Threshold{Name: o.Name + ": longest in line", Value: fmt.Sprintf("%d rounds", t.inLine), Bar: fmt.Sprintf("<= %d", waitBar), OK: t.inLine <= waitBar})
			}
		}
		if c := o.Churn; c != nil && len(c.Storm) > 0 {
			cost.Rows = append(cost.Rows, c.row(o.Name, len(o.Rounds)))
		}
	}
	return append(bars, judgeCalls(all)...), []Table{latency, who, cost}
}

// judgeElections: most vacancies must have been seen, or too little was measured.
func judgeElections(o Outcome, e series) []Threshold {
	enough := 10*len(e) >= 9*o.Trial.Rounds && len(e) > 0
	return []Threshold{
		{Name: o.Name + ": election p95", Value: fmt.Sprintf("%s of %d", ms(e.at(0.95)), len(e)), Bar: "< " + ms(electionBar), OK: enough && e.at(0.95) < electionBar},
		{Name: o.Name + ": election max", Value: fmt.Sprintf("%s of %d", ms(e.at(1)), len(e)), Bar: "< " + ms(electionMost), OK: enough && e.at(1) < electionMost},
	}
}

func (c *churned) row(name string, rounds int) []string {
	per := func(calls float64) string { return fmt.Sprintf("%.1f", calls*c.Seconds/float64(max(1, rounds))) }
	most := 0
	for _, n := range c.Tries {
		most = max(most, n)
	}
	return []string{
		name, fmt.Sprintf("%.2f", mean(c.Tries)), fmt.Sprint(most), fmt.Sprintf("%.2f", mean(c.Calls)), fmt.Sprintf("%.1f", c.Calm.calls()), fmt.Sprintf("%.1f", c.Storm.calls()),
		per(c.Storm.calls() - c.Calm.calls()), per(c.Storm[proposals]),
	}
}

// judgeCalls compares what a vacancy costs with nine nodes and with three, and with a
// line and without: a measure that sees no herd where there is one sees nothing.
func judgeCalls(all []Outcome) (bars []Threshold) {
	find := func(name string) (*churned, bool) {
		for _, o := range all {
			if o.Name == name && o.Churn != nil && len(o.Churn.Calls) > 0 && mean(o.Churn.Calls) > 0 {
				return o.Churn, true
			}
		}
		return nil, false
	}
	nine, ok9 := find("etcd-9/" + inLine)
	three, ok3 := find("etcd-3/" + inLine)
	herd, okHerd := find("etcd-9/" + atOnceName)
	compare := func(name string, a, b []int, bar string, good func(float64) bool, ok bool) {
		t := Threshold{Name: name, Value: "not measured", Bar: bar}
		if ok {
			ratio := mean(a) / mean(b)
			t.Value, t.OK = fmt.Sprintf("%.2f / %.2f = %.2f", mean(a), mean(b), ratio), good(ratio)
		}
		bars = append(bars, t)
	}
	if !ok9 {
		nine = &churned{}
	}
	if !ok3 {
		three = &churned{}
	}
	if !okHerd {
		herd = &churned{}
	}
	// The mean of a few rounds says nothing about a fifth more or less.
	if slices.ContainsFunc(all, func(o Outcome) bool { return o.Name == "etcd-9/"+inLine && o.Trial.Rounds > few }) {
		compare("calls per vacancy, 9 nodes to 3", nine.Calls, three.Calls, fmt.Sprintf("<= %.1f", callsBar), func(r float64) bool { return r <= callsBar }, ok9 && ok3)
	}
	compare("tries per vacancy, all at once to in line, 9 nodes", herd.Tries, nine.Tries, "> 2", func(r float64) bool { return r > 2 }, ok9 && okHerd)
	return bars
}

func drawElections(all []Outcome, note string) figure {
	e := plot.Elections{Note: note, Bar: electionBar, BarQuantile: 0.95}
	for _, o := range all {
		if o.Engine == raftEngine {
			continue // it is measured from the kill
		}
		e.Series = append(e.Series, plot.ElectionSeries{Name: o.Name, Samples: elections(o)})
	}
	return e
}
