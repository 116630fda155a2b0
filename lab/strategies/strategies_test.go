package strategies

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

// candidateArg makes the test binary a candidate.
const candidateArg = "strategy-candidate"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == candidateArg {
		if err := RunCandidate(os.Stdin, os.Stdout); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func arenaOf(t *testing.T, name string) *arena {
	t.Helper()
	s, err := find(name)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a := newArena(t, s, []string{self, candidateArg})
	a.step = 100 * time.Millisecond
	return a
}

// within bounds a test whose machine may be busy.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 4*time.Minute, errors.New("not within four minutes"))
	t.Cleanup(cancel)
	return ctx
}

// Bully and Ring send exactly as many messages as the algorithms need: in the worst case a number
// that grows like n², and Ring with one initiator 2n.
func TestMessages(t *testing.T) {
	t.Parallel()
	var all []Election
	for _, c := range []struct {
		name  string
		worst bool
	}{{"bully", true}, {"ring", true}, {"ring", false}} {
		a := arenaOf(t, c.name)
		var of []Election
		for _, n := range []int{3, 5, 9} {
			e, err := a.elect(within(t), Election{Strategy: c.name, Nodes: n, Worst: c.worst, Seed: 1})
			if err != nil {
				t.Fatal(err)
			}
			if e.Messages != e.expected() {
				t.Errorf("%s with %d candidates, worst %v: %d messages, want %d", c.name, n, c.worst, e.Messages, e.expected())
			}
			of = append(of, e)
		}
		if k := growth(of); c.worst && k < 1.8 || !c.worst && (k < 0.95 || k > 1.05) {
			t.Errorf("%s, worst %v: grows like n to the %.2f", c.name, c.worst, k)
		}
		all = append(all, of...)
	}
	if table := Elections(all); len(table.Rows) != 9 {
		t.Errorf("%d rows", len(table.Rows))
	}
}

// The four failures of a flag in a database happen.
func TestFlagFailures(t *testing.T) {
	t.Parallel()
	seen, err := arenaOf(t, flagName).flagFailures(within(t))
	if err != nil || len(seen) != 4 {
		t.Errorf("%q, %v", seen, err)
	}
}

// A leader is stopped for longer than its lease. Each strategy that then elects another has a
// stale write; the fence refuses it if the strategy has a token, and only then. Without the fence
// it is accepted from Tenure too: the check that looks for stale writes can fail.
func TestPause(t *testing.T) {
	t.Parallel()
	few := make(chan struct{}, 4)
	var cells sync.WaitGroup
	defer cells.Wait()
	for _, s := range all() {
		if s.name == flagName || s.name == "advisory" {
			continue // they elect nobody: TestFlagFailures, TestAdvisory
		}
		a := arenaOf(t, s.name)
		ttl := time.Second
		if strings.HasPrefix(s.name, "tenure") {
			ttl = minTTL
		}
		fences := []bool{true}
		if s.name == "tenure-etcd" {
			fences = []bool{true, false}
		}
		for _, fence := range fences {
			few <- struct{}{}
			cells.Go(func() {
				defer func() { <-few }()
				var r Round
				var err error
				// The leader may be stopped between a write and its answer: then it has none to make.
				for try := 0; try < 5 && err == nil && r.Accepted+r.Refused == 0; try++ {
					r, err = a.playAgain(within(t), Cell{Strategy: s.name, Fault: "pause", Fence: fence, Nodes: 3, TTL: ttl, Seed: 1}, try, time.Minute)
				}
				if err != nil {
					t.Error(err)
					return
				}
				if r.Failover == 0 || (r.Refused > 0) != (s.token && fence) || (r.Accepted > 0) != (!s.token || !fence) {
					t.Errorf("%s, fence %v: %+v", s.name, fence, r)
				}
				if bad := Summarize([]Round{r}); s.token && fence && !bad.Passed() {
					t.Errorf("%s: %+v", s.name, bad.Thresholds)
				}
			})
		}
	}
}

// An advisory lock is free when the process is killed, and is not when it is cut off. A lock in
// Redis that is extended blindly has two leaders for as long as they live.
func TestKillAndCut(t *testing.T) {
	t.Parallel()
	a := arenaOf(t, "advisory")
	cell := Cell{Strategy: a.name, Fault: "kill", Fence: true, Nodes: 3, TTL: time.Second}
	if r, err := a.play(within(t), cell, 1, time.Minute); err != nil || r.Failover == 0 || r.Accepted > 0 {
		t.Errorf("killed: %+v, %v", r, err)
	}
	cell.Fault = "minority"
	if r, err := a.play(within(t), cell, 1, 3*time.Second); err != nil || r.Failover > 0 || r.Left > 0 {
		t.Errorf("cut off: %+v, %v", r, err)
	}
	b := arenaOf(t, "redis-blind")
	cell.Strategy = b.name
	if r, err := b.play(within(t), cell, 1, time.Minute); err != nil || r.Believers != 2 || r.Both < time.Second/2 || r.Accepted == 0 {
		t.Errorf("two believers: %+v, %v", r, err)
	}
}

// An unknown strategy, an unknown fault, and a fault that a strategy cannot have are refused
// before anything runs. Without --fault such cells are left out.
func TestPlan(t *testing.T) {
	good := Plan{Only: []string{"bully", "redlock"}, Rounds: 1, Nodes: []int{3}, TTL: minTTL, Command: []string{"none"}}
	cells, err := good.cells()
	if err != nil || len(cells["bully"]) != 2*7 || len(cells["redlock"]) != 2*8 {
		t.Errorf("%d and %d cells, %v", len(cells["bully"]), len(cells["redlock"]), err)
	}
	for want, change := range map[string]func(*Plan){
		`no strategy "paxos"`:            func(p *Plan) { p.Only = []string{"bully", "paxos"} },
		`no fault "earthquake"`:          func(p *Plan) { p.Faults = []string{"earthquake"} },
		`bully cannot have the fault`:    func(p *Plan) { p.Faults = []string{"member"} },
		`needs 5 candidates`:             func(p *Plan) { p.Faults = []string{"split"} },
		"--nodes 2":                      func(p *Plan) { p.Nodes = []int{2} },
		"at least one round":             func(p *Plan) { p.Rounds = 0 },
		"Raft refuses even numbers":      func(p *Plan) { p.Only, p.Nodes, p.Faults = []string{"tenure-raft"}, []int{4}, []string{"kill"} },
		"flag cannot have the fault \"m": func(p *Plan) { p.Only, p.Faults = []string{"flag"}, []string{"member"} },
	} {
		p := good
		change(&p)
		if _, err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A recorded round is not run again, and a line that a killed run left half written is ignored.
func TestResume(t *testing.T) {
	p := Plan{Only: []string{"bully"}, Faults: []string{"kill"}, Rounds: 1, Nodes: []int{3}, TTL: minTTL, Out: t.TempDir(), Command: []string{"none"}}
	text := `{"cell":{"strategy":"bully","fault":"kill","fence":false,"nodes":3,"ttl":2000000000,"seed":0,"round":1,"failover":5}}
{"cell":{"strategy":"bully","fault":"kill","fence":true,"nodes":3,"ttl":2000000000,"seed":0,"round":1,"failover":7}}
{"election":{"Strategy":"bully","Nodes":3,"Worst":true,"Messages":5}}
{"election":{"Strategy":"bully","Nodes":3,"Messages":2}}
{"cell":{"strategy":"bul`
	if err := os.WriteFile(filepath.Join(p.Out, resultsFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	result, err := p.Run(t.Context())
	rounds := result.Rounds
	if err != nil || len(rounds) != 2 || len(result.Elections) != 2 {
		t.Fatalf("%+v, %v", result, err)
	}
	if table := Summarize(rounds).Tables[0]; len(table.Rows) != 2 || !strings.Contains(markdown(table), "| bully | kill | 3 | on | 1 |") {
		t.Errorf("%v", table)
	}
	// A stale write that a fence with tokens accepted misses the bar.
	bad := Round{Cell: Cell{Strategy: "tenure-etcd", Fault: "pause", Fence: true}, Accepted: 1}
	if Summarize([]Round{bad}).Passed() {
		t.Error("an accepted stale write passes")
	}
	p.Seed++
	if cells, _ := p.cells(); cells["bully"][0] == rounds[0].Cell {
		t.Error("another seed has the same results")
	}
}

// Two leaders believe at once from the later begin to the earlier end, and not while one of them
// is stopped.
func TestBelievers(t *testing.T) {
	ms := func(n int) clock.Instant { return clock.Instant(n * int(time.Millisecond)) }
	f := &fleet{procs: []*proc{{}, {}, {}}, terms: []*term{
		{node: 0, began: ms(10), ended: ms(100)},
		{node: 1, began: ms(60), ended: ms(200)},
		{node: 2, began: ms(200), ended: ms(210)},
	}}
	if most, both := f.believers(0); most != 2 || both != 40*time.Millisecond {
		t.Errorf("%d for %v", most, both)
	}
	f.procs[0].stopped = []span{{ms(50), ms(90)}}
	if most, both := f.believers(0); most != 2 || both != 10*time.Millisecond {
		t.Errorf("stopped: %d for %v", most, both)
	}
	if most, both := f.believers(ms(100)); most != 1 || both != 0 {
		t.Errorf("later: %d for %v", most, both)
	}
}

// A write is stale if a leader with a later token has begun or, without tokens, any leader after
// it. The fence refuses by the token alone.
func TestStale(t *testing.T) {
	a, b := &term{token: 2}, &term{token: 1}
	f := &fleet{terms: []*term{a, b}}
	if f.stale(a) || !f.stale(b) {
		t.Error("with tokens the order of arrival decides")
	}
	a.token, b.token = 0, 0
	if !f.stale(a) || f.stale(b) {
		t.Error("without tokens the order of arrival does not decide")
	}
}

// Tenure on etcd in three regions: another leads after a crash and after a handover, a keep-alive
// takes at least the round trip between two regions, and a bar that is missed is noticed.
func TestRegions(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := Regions{
		Delays: []time.Duration{50 * time.Millisecond}, Timing: lease.Timing{TTL: 4 * time.Second}.Resolve(), Rounds: 1, Idle: time.Millisecond,
		Command: []string{self, candidateArg}, Say: func(string) {},
	}
	all, err := r.Run(within(t))
	if err != nil {
		t.Fatal(err)
	}
	x := all[0]
	if len(x.Elections) != 1 || len(x.Failovers) != 1 || len(x.Resigns) != 1 || x.Renewals.At(0) < r.Delays[0] {
		t.Errorf("%+v", x)
	}
	x.Failovers[0], x.Resigns[0], x.False = r.Timing.TTL, time.Millisecond, 0
	if s := r.Summarize([]Region{x}); !s.Passed() {
		t.Errorf("%+v", s.Thresholds)
	}
	x.Failovers[0], x.Resigns[0], x.False = r.Timing.TTL+3*time.Second, time.Second, 1
	for _, b := range r.Summarize([]Region{x}).Thresholds {
		if b.OK {
			t.Errorf("it cannot be missed: %+v", b)
		}
	}
}
