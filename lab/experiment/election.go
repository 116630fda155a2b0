package experiment

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/plot"
)

// elected are the terms that began in a round: after its kill, before the next.
func elected(o Outcome, i int) (terms []check.Term) {
	for _, t := range o.Report.Terms {
		if t.Began > 0 && uint64(t.Token) > o.Rounds[i].Token && (i+1 == len(o.Rounds) || uint64(t.Token) <= o.Rounds[i+1].Token) {
			terms = append(terms, t)
		}
	}
	return terms
}

// elections are how long the elections of a trial took that followed a kill, from when
// the vacancy was first seen to the beginning of the term that ended it. A term that
// began before anybody had told of the vacancy took no time that could be seen. With
// Raft it is from the kill.
func elections(o Outcome) (s series) {
	if o.Engine == raftEngine {
		return sinceKill(o)
	}
	for i := range o.Rounds {
		terms := elected(o, i)
		if len(terms) == 0 {
			continue
		}
		if since := terms[0].Vacant; since > 0 {
			s = append(s, max(0, terms[0].Began.Sub(since)))
		}
	}
	return s
}

// killedAt is when a node was last killed before an instant.
func killedAt(faults []history.Fault, node string, before clock.Instant) (at clock.Instant) {
	for _, f := range faults {
		if f.Class == history.ClassKill && f.Target == node && f.Begun < before {
			at = max(at, f.Begun)
		}
	}
	return at
}

// won is what became of a trial's vacancies.
type won struct {
	// one counts the rounds whose vacancy had one winner: a term began, and none beside it.
	one int
	// further are the terms that began after the winner's, by how the one before them had
	// ended; those of a leader that left are handed over, and explained.
	further map[string]int
	handed  int
}

func wonOf(o Outcome) won {
	w := won{further: map[string]int{}}
	for i, r := range o.Rounds {
		terms := elected(o, i)
		alone := len(terms) > 0
		for j := 1; j < len(terms); j++ {
			last := terms[j-1]
			alone = alone && last.Ended <= terms[j].Began
			switch orderly := last.Node == r.Left && (last.Cause == "resigned" || last.Cause == "transferred"); {
			case !orderly:
				w.further[orNone(last.Cause)]++
			case terms[j].Began.Sub(last.Ended) < o.TTL/2:
				w.handed++
			default:
				w.further[last.Cause+", and not released"]++
			}
		}
		if alone {
			w.one++
		}
	}
	return w
}

// lost says how the terms ended that nobody's kill or leave did, and whether they may
// have: load lets a keep-alive come too late for one term in twenty at most, and ends no
// term otherwise.
func (w won) lost(rounds int) (words string, ok bool) {
	sum, byLoad := 0, 0
	var each []string
	for _, cause := range slices.Sorted(maps.Keys(w.further)) {
		sum += w.further[cause]
		if cause == "expired" || cause == "lost" {
			byLoad += w.further[cause]
		}
		each = append(each, fmt.Sprintf("%s %d", cause, w.further[cause]))
	}
	words = fmt.Sprint(sum)
	if sum > 0 {
		words += ": " + strings.Join(each, ", ")
	}
	return words, sum == byLoad && byLoad <= rounds/loadBar
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
		gone := r.Left
		if gone == r.Successor {
			gone = "" // it left after it had won
		}
		stood[r.Node], stood[gone] = 0, 0
		t.wins[r.Successor]++
		for _, id := range nodes {
			since[id]++
			if id != r.Node && id != gone {
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
	loadBar      = 20  // rounds in which load alone may end one term
	callsBar     = 1.2 // times the calls with three nodes
)

func judgeChurn(all []Outcome) ([]Threshold, []Table) {
	var bars []Threshold
	latency := Table{Title: "election: vacancy seen to term begun", Head: []string{"trial", "n", "p50", "p95", "p99", "max", "aim"}}
	who := Table{Title: "whose turn; who leaves and joins stands at the end of the line again", Head: []string{"trial", "rounds", "one winner", "nodes that won", "longest in line (rounds)", "longest between wins, leaving included"}}
	ends := Table{Title: "terms that ended without a kill", Head: []string{"trial", "handed over by a leader that left", "others, by how they ended"}}
	cost := Table{Title: "calls to the engine; those of each vacancy by the nodes' count, a second's by etcd's own", Head: []string{"trial", "tries/vacancy", "most", "calls/vacancy", "calls/s calm", "calls/s in the storm", "more/vacancy, joining included, beats not", "commits/vacancy"}}
	for _, o := range all {
		e, t, w := elections(o), turnsOf(nodeNames(o.Nodes), o.Rounds), wonOf(o)
		name, aim := o.Name, fmt.Sprintf("p99 %s: %v", ms(electionAim), len(e) > 0 && e.at(0.99) <= electionAim)
		if o.Engine == raftEngine {
			name, aim = name+", from the kill", ""
		}
		lost, may := w.lost(len(o.Rounds))
		latency.Rows = append(latency.Rows, []string{name, fmt.Sprint(len(e)), ms(e.at(0.5)), ms(e.at(0.95)), ms(e.at(0.99)), ms(e.at(1)), aim})
		who.Rows = append(who.Rows, []string{o.Name, fmt.Sprint(len(o.Rounds)), fmt.Sprint(w.one), fmt.Sprintf("%d of %d", len(t.wins), o.Nodes), fmt.Sprint(t.inLine), fmt.Sprint(t.between)})
		ends.Rows = append(ends.Rows, []string{o.Name, fmt.Sprint(w.handed), lost})
		bars = append(bars, count(o.Name+": one winner", w.one, o.Trial.Rounds))
		if len(o.Plant) == 0 {
			bars = append(bars, judgeElections(o, e)...)
			if o.Trial.Rounds > few {
				bars = append(bars, Threshold{Name: o.Name + ": terms lost without a kill or a leave", Value: lost, Bar: fmt.Sprintf("expired or lost: <= %d, others: 0", o.Trial.Rounds/loadBar), OK: may})
			}
			if o.Nodes > 3 && o.Trial.Rounds > few {
				bars = append(bars, count(o.Name+": nodes that won", len(t.wins), o.Nodes))
				if o.Engine == etcdEngine {
					bars = append(bars, Threshold{Name: o.Name + ": longest in line", Value: fmt.Sprintf("%d rounds; %d between wins, leaving included", t.inLine, t.between), Bar: fmt.Sprintf("in line <= %d", waitBar), OK: t.inLine <= waitBar})
				}
			}
		}
		if c := o.Churn; c != nil && len(c.Storm) > 0 {
			cost.Rows = append(cost.Rows, c.row(o.Name, len(o.Rounds)))
		}
	}
	return append(bars, judgeCalls(all)...), []Table{latency, who, ends, cost}
}

// judgeElections: every vacancy must have been seen. With Raft, which is measured from
// the kill, a follower's patience comes first: up to twice the TTL.
func judgeElections(o Outcome, e series) []Threshold {
	p95, most := electionBar, electionMost
	if o.Engine == raftEngine {
		p95, most = p95+2*o.TTL, most+2*o.TTL
	}
	bars := []Threshold{
		count(o.Name+": elections measured", len(e), o.Trial.Rounds),
		{Name: o.Name + ": election p95", Value: fmt.Sprintf("%s of %d", ms(e.at(0.95)), len(e)), Bar: "< " + ms(p95), OK: len(e) > 0 && e.at(0.95) < p95},
		{Name: o.Name + ": election max", Value: fmt.Sprintf("%s of %d", ms(e.at(1)), len(e)), Bar: "< " + ms(most), OK: len(e) > 0 && e.at(1) < most},
	}
	if o.Engine == raftEngine {
		return bars
	}
	// A vacancy counts from when a node saw it: from the kill nothing can be late unseen.
	return append(bars, below(o.Name+": from the kill to the next term", sinceKill(o), o.TTL+o.TTL/10+time.Second+electionMost, o.Trial.Rounds))
}

// sinceKill are the times from each kill to the next term.
func sinceKill(o Outcome) (s series) {
	for i, r := range o.Rounds {
		if terms := elected(o, i); len(terms) > 0 {
			if at := killedAt(o.Report.Faults, r.Node, terms[0].Began); at > 0 {
				s = append(s, terms[0].Began.Sub(at))
			}
		}
	}
	return s
}

// perVacancy is how many calls each vacancy cost beyond those of a calm, by etcd's count.
// Beats are left out: that the dead send none is nothing that a vacancy saves.
func (c *churnCost) perVacancy(rounds int) float64 {
	return (c.Storm.calls() - c.Storm.beats() - c.Calm.calls() + c.Calm.beats()) * c.Seconds / float64(max(1, rounds))
}

func (c *churnCost) row(name string, rounds int) []string {
	most := 0
	for _, n := range c.Tries {
		most = max(most, n)
	}
	return []string{
		name, fmt.Sprintf("%.2f", mean(c.Tries)), fmt.Sprint(most), fmt.Sprintf("%.2f", mean(c.Calls)), fmt.Sprintf("%.1f", c.Calm.calls()), fmt.Sprintf("%.1f", c.Storm.calls()),
		fmt.Sprintf("%.1f", c.perVacancy(rounds)), fmt.Sprintf("%.1f", c.Storm[proposals]*c.Seconds/float64(max(1, rounds))),
	}
}

// judgeCalls compares what a vacancy costs with nine nodes and with three, and with a
// line and without: a measure that sees no herd where there is one sees nothing.
func judgeCalls(all []Outcome) (bars []Threshold) {
	find := func(name string) Outcome {
		for _, o := range all {
			if o.Name == name && o.Churn != nil {
				return o
			}
		}
		return Outcome{Churn: &churnCost{}}
	}
	nine, three, herd := find("etcd-9/"+inLine), find("etcd-3/"+inLine), find("etcd-9/"+atOnceName)
	compare := func(name string, a, b float64, bar string, good func(float64) bool) {
		t := Threshold{Name: name, Value: "not measured", Bar: bar}
		if a > 0 && b > 0 {
			t.Value, t.OK = fmt.Sprintf("%.2f / %.2f = %.2f", a, b, a/b), good(a/b)
		}
		bars = append(bars, t)
	}
	// The mean of a few rounds says nothing about a fifth more or less.
	if slices.ContainsFunc(all, func(o Outcome) bool { return o.Name == "etcd-9/"+inLine && o.Trial.Rounds > few }) {
		bar, enough := fmt.Sprintf("<= %.1f", callsBar), func(r float64) bool { return r <= callsBar }
		compare("calls per vacancy, 9 nodes to 3", mean(nine.Churn.Calls), mean(three.Churn.Calls), bar, enough)
		compare("calls per vacancy by etcd's count, less beats and those of a calm, 9 nodes to 3", nine.Churn.perVacancy(len(nine.Rounds)), three.Churn.perVacancy(len(three.Rounds)), bar, enough)
	}
	compare("tries per vacancy, all at once to in line, 9 nodes", mean(herd.Churn.Tries), mean(nine.Churn.Tries), "> 2", func(r float64) bool { return r > 2 })
	return bars
}

func drawElections(all []Outcome, note string) figure {
	e := plot.Elections{Note: note, Bar: electionBar, BarQuantile: 0.95}
	for _, o := range all {
		if o.Engine == raftEngine {
			continue // it is measured from the kill
		}
		e.Series = append(e.Series, plot.Series{Name: o.Name, Samples: elections(o)})
	}
	return e
}
