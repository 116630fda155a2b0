// Package churn declares the experiment that kills leaders one after the other while nodes join
// and leave.
package churn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/plot"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
	"github.com/tenurehq/tenure/reference/api"
)

// The trials of experiment 6 that are compared.
const (
	nineInLine   = "etcd-9/in-line"
	threeInLine  = "etcd-3/in-line"
	nineAllAtOne = "etcd-9/all-at-once"
)

// Experiment is experiment 6.
func Experiment() experiment.Experiment {
	return experiment.Experiment{
		Name: "6", Title: "churn: leaders killed one after the other while nodes join and leave", Seed: 6,
		Question: "How long does an election take while the leader is killed every 5 s and others come and go, what does it cost the engine, and does everybody get a turn?",
		Expectation: "From the vacancy at the engine to the next term: 95 % below 500 ms, none as long as 2 s, 99 % within 50 ms as an aim. " +
			"One winner for each vacancy; at most one term in twenty is lost to load alone, and none for another reason than a kill, a leave or load. Every node wins, and stands in line for at most 18 rounds: from one win to the next it may take longer, because whoever leaves and joins again stands at the end of the line, as with any queue; both are told. " +
			"With nine nodes a vacancy costs the engine at most 1.2 times the calls that it costs with three, because only the first in line tries: by the nodes' count of the calls that a vacancy leads to, and by etcd's own of all calls but beats beyond those of a calm, joining included. " +
			"Where everybody tries at once (a planted bug) it costs several times as much. A leader that leaves, in every tenth round, hands over in order. " +
			"Raft has no line, and nobody tells of a vacancy before a vote has ended it: what is told there is from the kill to the next term, up to twice the patience of a follower longer, and who wins is left to chance; in ten minutes everybody does.",
		Trials: func(size experiment.Size) []trial.Trial {
			on := func(name, engine string, nodes, rounds int) trial.Trial {
				return trial.Trial{
					Name: name, Engine: engine, TTL: 2 * time.Second, Nodes: nodes, Rate: experiment.Pick(size, 100.0, 500), Rounds: rounds,
					Every: experiment.Pick(size, 3*time.Second, 5*time.Second), Patience: time.Second, Pass: trial.Safe("evidence", "baton"), Play: churnScript, After: countCalls,
				}
			}
			// Ten minutes of the judged trial, four of those that it is compared with.
			all := []trial.Trial{on(nineInLine, trial.Etcd, 9, experiment.Pick(size, 2, 120)), on(threeInLine, trial.Etcd, 3, experiment.Pick(size, 1, 48)), on(nineAllAtOne, trial.Etcd, 9, experiment.Pick(size, 1, 48))}
			all[2].Plant = []string{"herd"}
			if size == experiment.Full {
				raft := on("raft-9", trial.Raft, 9, 120)
				raft.After = nil
				all = append(all, raft)
			}
			return all
		},
		Takes: func(size experiment.Size) time.Duration { return experiment.Pick(size, 30*time.Second, 30*time.Minute) },
		Judge: judgeChurn, Compare: compareCalls,
		Figures: func(all []trial.Outcome, note string) []experiment.Figure {
			e := plot.Elections{Note: note, Bar: electionBar}
			for _, o := range all {
				if o.Engine == trial.Etcd { // with Raft, time counts from the kill
					e.Series = append(e.Series, plot.Series{Name: o.Name, Samples: elections(o)})
				}
			}
			return []experiment.Figure{{Name: "figure", Drawing: e}}
		},
	}
}

const (
	electionBar  = 500 * time.Millisecond
	electionMost = 2 * time.Second
	electionAim  = 50 * time.Millisecond
	waitBar      = 18  // rounds
	loadBar      = 20  // rounds in which load alone may end one term
	callsBar     = 1.2 // times the calls with three nodes

	few       = 10          // rounds that are too few for a mean
	aftermath = time.Second // how long after a term began calls still belong to its vacancy
)

// churnScript kills the leader at fixed times, and counts the calls to the engine before and
// during the kills.
func churnScript(ctx context.Context, s *trial.Run) error {
	if err := s.AllUp(ctx); err != nil {
		return err
	}
	s.Cost = &trial.Cost{}
	first, err := engineCalls(ctx, s)
	if err != nil {
		return err
	}
	calm := s.TTL / 2
	if s.Trial.Rounds > few {
		calm = 15 * s.TTL
	}
	s.Say("counting calls for %v without a fault", calm)
	if err := s.Hold(ctx, calm); err != nil {
		return err
	}
	before, err := engineCalls(ctx, s)
	if err != nil {
		return err
	}
	began := clock.System().Now()
	if err := (trial.Loop{
		What: "killing the leader", Busy: true, Round: churnRound,
		Wait: func(s *trial.Run, i int) time.Duration {
			return max(0, began.Add(time.Duration(i)*s.Every).Sub(clock.System().Now()))
		},
	}).Play(ctx, s); err != nil {
		return err
	}
	over := clock.System().Now().Sub(began)
	after, err := engineCalls(ctx, s)
	s.Cost.Seconds, s.Cost.Calm, s.Cost.Storm = over.Seconds(), before.rate(first, calm), after.rate(before, over)
	return err
}

func churnRound(ctx context.Context, s *trial.Run, i int, r *trial.Round) error {
	r.Kind = "kill"
	f, err := s.Inject(ctx, r, chaos.Spec{Kind: chaos.KillLeader})
	if err != nil {
		return err
	}
	// The last round has an orderly handover, however few rounds there are.
	leaderLeaves := i%10 == 9 || i == s.Trial.Rounds-1
	if i%2 == 1 && !leaderLeaves {
		nodes := s.CurrentNodes()
		for _, i := range s.Rand.Perm(len(nodes)) {
			if nodes[i].ID == f.Target {
				continue
			}
			left, err := leave(ctx, s, nodes[i])
			if err != nil {
				return err
			}
			if left {
				r.Left = nodes[i].ID
				break
			}
		}
	}
	if err := s.Succeeded(ctx, r, f.Token); err != nil {
		return err
	}
	if leaderLeaves {
		if err := s.Hold(ctx, aftermath); err != nil {
			return err
		}
		for _, n := range s.CurrentNodes() {
			if n.ID != r.Successor {
				continue
			}
			if left, err := leave(ctx, s, n); err != nil || !left { // it may have ended by itself
				return err
			}
			r.Left = n.ID
			if _, err := s.Leader(ctx, r.Next); err != nil {
				return err
			}
		}
	}
	s.Say("%s killed, %s left", r.Node, cmp.Or(r.Left, "nobody"))
	return nil
}

// leave interrupts a node, which then shuts down in order and is restarted. It returns false
// if the node does not run.
func leave(ctx context.Context, s *trial.Run, n labapi.NodeFile) (bool, error) {
	if st, ok := s.Status(ctx, n.URL); !ok || st.PID != n.PID {
		return false, nil
	}
	p, err := os.FindProcess(n.PID)
	if err != nil {
		return false, err
	}
	begun := clock.System().Now()
	err = child.Interrupt(p)
	_ = p.Release()
	if errors.Is(err, os.ErrProcessDone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := trial.Await(ctx, n.ID+" leaving", func(ctx context.Context) bool {
		st, ok := s.Status(ctx, n.URL)
		return !ok || st.PID != n.PID
	}); err != nil {
		return false, err
	}
	return true, s.Faults.Write(history.Fault{
		Name: "leave", Target: n.ID, Begun: begun, Healed: clock.System().Now(), Evidence: fmt.Sprintf("pid %d has ended in order", n.PID),
		Proof: history.Proof{Kind: history.ProofExited, PIDs: []int{n.PID}},
	})
}

// counted is the number of calls to the engine by method, or a rate of them.
type counted map[string]float64

// proposals is the key of what etcd has committed.
const proposals = "commits"

// engineCalls reads etcd's own counters. Raft has none.
func engineCalls(ctx context.Context, s *trial.Run) (counted, error) {
	if s.Engine == trial.Raft {
		return nil, nil
	}
	var text string
	if err := s.Chaos.Call(ctx, 10*time.Second, http.MethodGet, s.File.Engine.URL+"/metrics", nil, nil, &text); err != nil {
		return nil, fmt.Errorf("read the engine's metrics: %w", err)
	}
	return parseCounted(text), nil
}

func parseCounted(text string) counted {
	c := counted{}
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || v == 0 {
			continue
		}
		switch name, labels, _ := strings.Cut(series, "{"); name {
		case "grpc_server_started_total":
			_, rest, _ := strings.Cut(labels, `grpc_method="`)
			method, _, _ := strings.Cut(rest, `"`)
			c[method] += v
		case "etcd_server_proposals_committed_total":
			c[proposals] = v
		}
	}
	return c
}

// rate returns the growth per second.
func (c counted) rate(since counted, over time.Duration) counted {
	r := counted{}
	for name, v := range c {
		if d := v - since[name]; d > 0 {
			r[name] = d / over.Seconds()
		}
	}
	return r
}

// calls sums all calls.
func (c counted) calls() (sum float64) {
	for name, v := range c {
		if name != proposals {
			sum += v
		}
	}
	return sum
}

// withoutBeats omits keep-alives: each is a call and a read.
func (c counted) withoutBeats() float64 { return c.calls() - 2*c["LeaseKeepAlive"] }

// nodeCall is a call of a node to its engine, from its trace.
type nodeCall struct {
	node string
	pid  int
	at   clock.Instant
	what string
}

// countCalls attributes the nodes' calls to the vacancies.
func countCalls(traces string, o *trial.Outcome) error {
	paths, err := filepath.Glob(filepath.Join(traces, "*.trace"))
	if err != nil {
		return err
	}
	var all []nodeCall
	for _, path := range paths {
		node := strings.TrimSuffix(filepath.Base(path), ".trace")
		// EachLine skips the lines of writes, which are most, without parsing them.
		if err := trial.EachLine(path, `"`+api.TraceCall+`"`, func(l labapi.TraceLine) error {
			if l.Kind == api.TraceCall {
				all = append(all, nodeCall{node, l.PID, l.At, l.What})
			}
			return nil
		}); err != nil {
			return err
		}
	}
	slices.SortStableFunc(all, func(a, b nodeCall) int { return cmp.Compare(a.at, b.at) })
	o.Cost.Tries, o.Cost.Calls = callsPerVacancy(all, *o)
	return nil
}

// callsPerVacancy counts, for each round, the calls that its vacancy caused: attempts to
// acquire, and all of them with the reads that follow, until a second after the term began.
// Reading the line and joining are not caused by the vacancy. A node that tries may have
// seen the vacancy a little before those that record it.
func callsPerVacancy(calls []nodeCall, o trial.Outcome) (tries, all []int) {
	const ahead = 100 * time.Millisecond
	var vacant, over []clock.Instant
	for i := range o.Rounds {
		if terms := elected(o, i); len(terms) > 0 && terms[0].Vacant > 0 {
			vacant, over = append(vacant, terms[0].Vacant.Add(-ahead)), append(over, terms[0].Began.Add(aftermath))
		}
	}
	tries, all = make([]int, len(vacant)), make([]int, len(vacant))
	opened := map[int]clock.Instant{} // by pid
	for _, c := range calls {
		if _, known := opened[c.pid]; c.what == api.CallOpen && !known {
			opened[c.pid] = c.at
		}
		i, _ := slices.BinarySearch(vacant, c.at+1)
		if i--; i < 0 || c.at > over[i] {
			continue
		}
		if since, known := opened[c.pid]; !known || since > vacant[i] {
			continue
		}
		switch c.what {
		case api.CallAcquire:
			tries[i]++
			all[i]++
		case api.CallRead, api.CallRelease:
			all[i]++
		}
	}
	return tries, all
}

// elected returns the terms that began in a round: after its kill, before the next one.
func elected(o trial.Outcome, i int) (terms []verdict.Term) {
	for _, t := range o.Report.Terms {
		if t.Began > 0 && t.Token > o.Rounds[i].Token && (i+1 == len(o.Rounds) || t.Token <= o.Rounds[i+1].Token) {
			terms = append(terms, t)
		}
	}
	return terms
}

// elections measures from when the vacancy was first seen to the beginning of the next term.
// A term that began before anybody recorded the vacancy took no measurable time. With Raft
// it is from the kill.
func elections(o trial.Outcome) (s measure.Series) {
	if o.Engine == trial.Raft {
		return sinceKill(o)
	}
	for i := range o.Rounds {
		if terms := elected(o, i); len(terms) > 0 && terms[0].Vacant > 0 {
			s = append(s, max(0, terms[0].Began.Sub(terms[0].Vacant)))
		}
	}
	return s
}

// sinceKill measures from each kill to the next term.
func sinceKill(o trial.Outcome) (s measure.Series) {
	for i, r := range o.Rounds {
		terms := elected(o, i)
		if len(terms) == 0 {
			continue
		}
		var killed clock.Instant // the last kill before the term
		for _, f := range o.Report.Faults {
			if f.Class == history.ClassKill && f.Target == r.Node && f.Begun < terms[0].Began {
				killed = max(killed, f.Begun)
			}
		}
		if killed > 0 {
			s = append(s, terms[0].Began.Sub(killed))
		}
	}
	return s
}

// winners has the outcomes of a trial's vacancies.
type winners struct {
	// one counts the vacancies with exactly one winner at a time.
	one int
	// handed counts the terms of leaders that left and handed over in order. further counts
	// all other terms that followed a winner's, by how the term before ended.
	handed  int
	further map[string]int
}

func winnersOf(o trial.Outcome) winners {
	w := winners{further: map[string]int{}}
	for i, r := range o.Rounds {
		terms := elected(o, i)
		alone := len(terms) > 0
		for j := 1; j < len(terms); j++ {
			last := terms[j-1]
			alone = alone && last.Ended <= terms[j].Began
			switch orderly := last.Node == r.Left && (last.Cause == "resigned" || last.Cause == "transferred"); {
			case !orderly:
				w.further[cmp.Or(last.Cause, "missing")]++
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

// lost counts, by cause, the terms that ended without a kill or a leave, and reports whether
// that is acceptable: only load may end them, by a late keep-alive, at most one in twenty.
func (w winners) lost(rounds int) (words string, ok bool) {
	sum := 0
	var each []string
	for _, cause := range slices.Sorted(maps.Keys(w.further)) {
		sum += w.further[cause]
		each = append(each, fmt.Sprintf("%s %d", cause, w.further[cause]))
	}
	words = fmt.Sprint(sum)
	if sum > 0 {
		words += ": " + strings.Join(each, ", ")
	}
	return words, sum == w.further["expired"]+w.further["lost"] && sum <= rounds/loadBar
}

// turns has who won, and how long the nodes waited for it.
type turns struct {
	wins map[string]int
	// inLine is the longest time in line, in rounds; a node that is killed or leaves starts
	// at the end again. between is the longest time from one win to the next.
	inLine, between int
}

func turnsOf(nodes []string, rounds []trial.Round) turns {
	t := turns{wins: map[string]int{}}
	stood, since := map[string]int{}, map[string]int{}
	for _, r := range rounds {
		gone := r.Left
		if gone == r.Successor {
			gone = "" // it left after its win
		}
		stood[r.Node], stood[gone] = 0, 0
		t.wins[r.Successor]++
		for _, id := range nodes {
			since[id]++
			if id != r.Node && id != gone {
				stood[id]++
			}
			// The winner has waited until this round, and starts again.
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

func judgeChurn(j measure.Judge, o trial.Outcome) {
	e, t, w, rounds := elections(o), turnsOf(nodeNames(o.Nodes), o.Rounds), winnersOf(o), o.Trial.Rounds
	name, aim := o.Name, fmt.Sprintf("p99 %s: %v", measure.MS(electionAim), len(e) > 0 && e.At(0.99) <= electionAim)
	if o.Engine == trial.Raft {
		name, aim = name+", from the kill", ""
	}
	lost, may := w.lost(len(o.Rounds))
	j.Table("election: vacancy seen to term begun", "trial", "n", "p50", "p95", "p99", "max", "aim").Add(name, len(e), e.At(0.5), e.At(0.95), e.At(0.99), e.At(1), aim)
	j.Row("whose turn; who leaves and joins stands at the end of the line again", []string{"rounds", "one winner", "nodes that won", "longest in line (rounds)", "longest between wins, leaving included"},
		len(o.Rounds), w.one, fmt.Sprintf("%d of %d", len(t.wins), o.Nodes), t.inLine, t.between)
	j.Row("terms that ended without a kill", []string{"handed over by a leader that left", "others, by how they ended"}, w.handed, lost)
	cost := j.Table("calls to the engine; those of each vacancy by the nodes' count, a second's by etcd's own",
		"trial", "tries/vacancy", "most", "calls/vacancy", "calls/s calm", "calls/s in the storm", "more/vacancy, joining included, beats not", "commits/vacancy")
	if c := o.Cost; c != nil && len(c.Storm) > 0 {
		f := func(format string, v float64) string { return fmt.Sprintf(format, v) }
		cost.Add(o.Name, f("%.2f", mean(c.Tries)), slices.Max(append(c.Tries, 0)), f("%.2f", mean(c.Calls)), f("%.1f", counted(c.Calm).calls()), f("%.1f", counted(c.Storm).calls()),
			f("%.1f", costPerVacancy(o)), f("%.1f", c.Storm[proposals]*c.Seconds/float64(max(1, len(o.Rounds)))))
	}
	j.Count("one winner", w.one, rounds)
	if len(o.Plant) > 0 {
		return
	}
	judgeElections(j, o, e)
	if rounds <= few {
		return
	}
	j.Bar("terms lost without a kill or a leave", lost, fmt.Sprintf("expired or lost: <= %d, others: 0", rounds/loadBar), may)
	if o.Nodes > 3 {
		j.Count("nodes that won", len(t.wins), o.Nodes)
		if o.Engine == trial.Etcd {
			j.Bar("longest in line", fmt.Sprintf("%d rounds; %d between wins, leaving included", t.inLine, t.between), fmt.Sprintf("in line <= %d", waitBar), t.inLine <= waitBar)
		}
	}
}

// judgeElections requires that every vacancy was seen. With Raft, which is measured from the
// kill, up to two election timeouts come first.
func judgeElections(j measure.Judge, o trial.Outcome, e measure.Series) {
	p95, most := electionBar, electionMost
	if o.Engine == trial.Raft {
		p95, most = p95+2*o.TTL, most+2*o.TTL
	}
	j.Count("elections measured", len(e), o.Trial.Rounds)
	below := func(name string, q float64, bar time.Duration) {
		j.Bar(name, fmt.Sprintf("%s of %d", measure.MS(e.At(q)), len(e)), "< "+measure.MS(bar), len(e) > 0 && e.At(q) < bar)
	}
	below("election p95", 0.95, p95)
	below("election max", 1, most)
	if o.Engine == trial.Etcd { // a vacancy counts from when a node saw it; this one counts from the kill
		j.Below("from the kill to the next term", sinceKill(o), o.TTL+o.TTL/10+time.Second+electionMost, o.Trial.Rounds)
	}
}

// costPerVacancy is how many calls each vacancy cost beyond those without faults, by etcd's count. Keep-alives are
// omitted: a dead node sends none, and that must not count as a saving.
func costPerVacancy(o trial.Outcome) float64 {
	return (counted(o.Cost.Storm).withoutBeats() - counted(o.Cost.Calm).withoutBeats()) * o.Cost.Seconds / float64(max(1, len(o.Rounds)))
}

func mean(counts []int) float64 {
	sum := 0
	for _, c := range counts {
		sum += c
	}
	return float64(sum) / float64(max(1, len(counts)))
}

// compareCalls compares the cost of a vacancy with nine nodes and with three, and with and
// without a line. The last comparison proves that the measure can see a herd.
func compareCalls(j measure.Judge, all []trial.Outcome) {
	find := func(name string) trial.Outcome {
		for _, o := range all {
			if o.Name == name && o.Cost != nil {
				return o
			}
		}
		return trial.Outcome{Cost: &trial.Cost{}}
	}
	compare := func(name string, a, b float64, bar string, good func(float64) bool) {
		if a <= 0 || b <= 0 {
			j.Bar(name, "not measured", bar, false)
			return
		}
		j.Bar(name, fmt.Sprintf("%.2f / %.2f = %.2f", a, b, a/b), bar, good(a/b))
	}
	nine, three, herd := find(nineInLine), find(threeInLine), find(nineAllAtOne)
	if slices.ContainsFunc(all, func(o trial.Outcome) bool { return o.Name == nineInLine && o.Trial.Rounds > few }) {
		bar, enough := fmt.Sprintf("<= %.1f", callsBar), func(r float64) bool { return r <= callsBar }
		compare("calls per vacancy, 9 nodes to 3", mean(nine.Cost.Calls), mean(three.Cost.Calls), bar, enough)
		compare("calls per vacancy by etcd's count, less beats and those of a calm, 9 nodes to 3", costPerVacancy(nine), costPerVacancy(three), bar, enough)
	}
	compare("tries per vacancy, all at once to in line, 9 nodes", mean(herd.Cost.Tries), mean(nine.Cost.Tries), "> 2", func(r float64) bool { return r > 2 })
}
