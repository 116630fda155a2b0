package strategies

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lab/measure"
)

// Plan is what to run.
type Plan struct {
	// Only and Faults are names; empty: all.
	Only, Faults []string
	Rounds       int
	// Nodes are numbers of candidates. All faults are run with the first one, kill with the others
	// too, and split with the first one that allows it.
	Nodes []int
	TTL   time.Duration
	Seed  uint64
	// Out is the folder of the results. What is there is not run again.
	Out string
	// Command starts a candidate.
	Command []string
	Say     func(string)
}

const minTTL = 2 * time.Second

const resultsFile = "strategies.jsonl"

// cells returns the cells of a plan, by strategy. A strategy that does not exist, or a fault that
// a named strategy cannot have, is an error.
func (p Plan) cells() (map[string][]Cell, error) {
	if p.Rounds < 1 || len(p.Nodes) == 0 || p.TTL < minTTL {
		return nil, fmt.Errorf("strategies need at least one round, one number of nodes, and a TTL of %v, the shortest of etcd", minTTL)
	}
	for _, n := range p.Nodes {
		if n < 3 || n > 9 {
			return nil, fmt.Errorf("--nodes %d: from 3 to 9", n)
		}
	}
	names, kinds := p.Only, p.Faults
	if len(names) == 0 {
		names = Names()
	}
	if len(kinds) == 0 {
		kinds = Faults()
	}
	cells := map[string][]Cell{}
	var wrong error
	for _, name := range names {
		s, err := find(name)
		if err != nil {
			return nil, err
		}
		for _, kind := range kinds {
			f, err := findFault(kind)
			if err != nil {
				return nil, err
			}
			did, why := false, ""
			for _, n := range p.Nodes {
				if not := f.cannot(s, n); not != "" {
					why = not
					continue
				}
				if s.name == "tenure-raft" && n%2 == 0 {
					why = "Raft refuses even numbers of members"
					continue
				}
				if did && kind != "kill" {
					continue
				}
				for _, fence := range []bool{false, true} {
					cells[name] = append(cells[name], Cell{name, kind, fence, n, p.TTL, p.Seed})
				}
				did = true
			}
			if !did && len(p.Faults) > 0 {
				wrong = errors.Join(wrong, fmt.Errorf("%s cannot have the fault %q: %s", name, kind, why))
			}
		}
	}
	return cells, wrong
}

// Validate finds mistakes in the plan.
func (p Plan) Validate() error {
	_, err := p.cells()
	return err
}

// Recorded is what runs have shown.
type Recorded struct {
	Rounds    []Round
	Elections []Election
	// Flag is how the four failures of a flag in a database were seen.
	Flag []string
}

// record is one line of the file of results. One field is set.
type record struct {
	Cell     *Round    `json:"cell,omitempty"`
	Election *Election `json:"election,omitempty"`
	Flag     string    `json:"flag,omitempty"`
}

// Results reads what is recorded in a folder.
func Results(dir string) (all Recorded, err error) {
	f, err := os.Open(filepath.Join(dir, resultsFile))
	if errors.Is(err, os.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return all, err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var r record
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			continue // the last line of a run that was killed
		}
		switch {
		case r.Cell != nil:
			all.Rounds = append(all.Rounds, *r.Cell)
		case r.Election != nil:
			all.Elections = append(all.Elections, *r.Election)
		case r.Flag != "":
			all.Flag = append(all.Flag, r.Flag)
		}
	}
	return all, lines.Err()
}

// Run runs what is not recorded yet, and returns all results of the plan.
func (p Plan) Run(ctx context.Context) (result Recorded, err error) {
	cells, err := p.cells()
	if err != nil {
		return result, err
	}
	if err := os.MkdirAll(p.Out, 0o755); err != nil {
		return result, err
	}
	old, err := Results(p.Out)
	if err != nil {
		return result, err
	}
	out, err := os.OpenFile(filepath.Join(p.Out, resultsFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := out.WriteString("\n"); err != nil { // a killed run may have left half a line
		return result, err
	}
	keep := func(r record) error {
		line, err := json.Marshal(r)
		if err == nil {
			_, err = out.Write(append(line, '\n'))
		}
		if err != nil {
			return fmt.Errorf("record a result: %w", err)
		}
		return nil
	}
	for _, s := range all() {
		if err := p.perform(ctx, s, cells[s.name], old, &result, keep); err != nil {
			return result, err
		}
	}
	return result, nil
}

// perform starts the servers of a strategy and plays the rounds that are not recorded.
func (p Plan) perform(ctx context.Context, s strategy, cells []Cell, old Recorded, result *Recorded, keep func(record) error) error {
	var missing []Round
	for _, c := range cells {
		for n := 1; n <= p.Rounds; n++ {
			i := slices.IndexFunc(old.Rounds, func(r Round) bool { return r.Cell == c && r.Round == n })
			if i < 0 {
				missing = append(missing, Round{Cell: c, Round: n})
				continue
			}
			result.Rounds = append(result.Rounds, old.Rounds[i])
		}
	}
	var count []Election
	if len(cells) > 0 && (s.name == "bully" || s.name == "ring") {
		for _, e := range elections(s.name, p.Nodes, p.Seed) {
			i := slices.IndexFunc(old.Elections, func(o Election) bool { o.Messages = 0; return o == e })
			if i < 0 {
				count = append(count, e)
				continue
			}
			result.Elections = append(result.Elections, old.Elections[i])
		}
	}
	flag := len(cells) > 0 && s.name == flagName
	if flag && len(old.Flag) > 0 {
		flag, result.Flag = false, old.Flag
	}
	if len(missing) == 0 && len(count) == 0 && !flag {
		return nil
	}
	p.Say(fmt.Sprintf("%s: starting %d servers (%s)", s.title, s.servers, s.engine))
	var a *arena
	stop, err := servertest.Run(func(t testing.TB) { a = newArena(t, s, p.Command) })
	if err != nil {
		return err
	}
	defer stop()
	for _, e := range count {
		if e, err = a.elect(ctx, e); err == nil {
			err = keep(record{Election: &e})
		}
		if err != nil {
			return err
		}
		result.Elections = append(result.Elections, e)
	}
	if flag {
		result.Flag, err = a.flagFailures(ctx)
		for _, seen := range result.Flag {
			err = errors.Join(err, keep(record{Flag: seen}))
		}
		if err != nil {
			return err
		}
	}
	for i, m := range missing {
		r, err := a.playAgain(ctx, m.Cell, m.Round, 4*p.TTL)
		if err == nil {
			err = keep(record{Cell: &r})
		}
		if err != nil {
			return err
		}
		p.Say(fmt.Sprintf("%s, round %d of %d: %s with %d nodes, fence %s: %d believed at once, %d stale writes accepted, %d refused",
			s.name, i+1, len(missing), r.Fault, r.Nodes, onOff(r.Fence), r.Believers, r.Accepted, r.Refused))
		result.Rounds = append(result.Rounds, r)
	}
	return nil
}

// playAgain repeats a round whose fault had no effect.
func (a *arena) playAgain(ctx context.Context, c Cell, number int, patience time.Duration) (r Round, err error) {
	const tries = 5
	err = errNoEffect
	for try := 0; try < tries && errors.Is(err, errNoEffect); try++ {
		r, err = a.play(ctx, c, number, patience)
	}
	return r, err
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// cell collects the rounds of a cell.
type cell struct {
	Cell
	rounds []Round
}

func byCell(rounds []Round) (cells []cell) {
	for _, s := range all() {
		for _, f := range faults() {
			for _, r := range rounds {
				if r.Strategy != s.name || r.Fault != f.name {
					continue
				}
				i := slices.IndexFunc(cells, func(c cell) bool { return c.Cell == r.Cell })
				if i < 0 {
					i = len(cells)
					cells = append(cells, cell{Cell: r.Cell})
				}
				cells[i].rounds = append(cells[i].rounds, r)
			}
		}
	}
	return cells
}

// head is that of the table of all cells.
func head() []string {
	return []string{
		"strategy", "fault", "nodes", "fence", "rounds", "believers at once", "for at most", "rounds with stale writes accepted", "stale writes accepted", "refused",
		"failover p50", "p95", "no failover", "messages per election", "messages a second at rest", "believe at the end of the fault",
	}
}

func (c cell) row() []string {
	var failovers measure.Series
	var believers, broken, accepted, refused, none, left int
	var both time.Duration
	var election int64
	var rest float64
	for _, r := range c.rounds {
		believers, both, left = max(believers, r.Believers), max(both, r.Both), max(left, r.Left)
		accepted += r.Accepted
		refused += r.Refused
		rest += r.Rest / float64(len(c.rounds))
		if r.Accepted > 0 {
			broken++
		}
		if r.Failover == 0 {
			none++
			continue
		}
		failovers = append(failovers, r.Failover)
		election += r.Election
	}
	p50, p95, messages := "-", "-", "-"
	if n := len(failovers); n > 0 {
		p50, p95 = measure.MS(failovers.At(0.5)), measure.MS(failovers.At(0.95))
		messages = fmt.Sprintf("%.1f", float64(election)/float64(n))
		if c.Strategy == "tenure-raft" {
			messages = "not separated"
		}
	}
	return []string{
		c.Strategy, c.Fault, fmt.Sprint(c.Nodes), onOff(c.Fence), fmt.Sprint(len(c.rounds)), fmt.Sprint(believers), measure.MS(both), fmt.Sprint(broken), fmt.Sprint(accepted), fmt.Sprint(refused),
		p50, p95, fmt.Sprint(none), messages, fmt.Sprintf("%.1f", rest), fmt.Sprint(left),
	}
}

// Summarize makes one table, and requires that a fence that gets tokens accepts no stale write.
func Summarize(rounds []Round) (s measure.Summary) {
	accepted, tried := map[string]int{}, map[string]int{}
	for _, r := range rounds {
		if r.Fence {
			accepted[r.Strategy] += r.Accepted
			tried[r.Strategy] += r.Accepted + r.Refused
		}
	}
	j := measure.Judge{Summary: &s}
	for _, st := range all() {
		if n, there := tried[st.name]; there && st.token {
			j.Bar(st.name+": stale writes accepted, fence on", fmt.Sprintf("%d of %d", accepted[st.name], n), "0", accepted[st.name] == 0)
		}
	}
	t := s.Table("strategies", head()...)
	for _, c := range byCell(rounds) {
		t.Rows = append(t.Rows, c.row())
	}
	return s
}
