//go:build linux

package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// rounds is how often a test repeats what it shows, unless TENURE_ROUNDS says.
func rounds(t *testing.T, usual int) int {
	n, err := strconv.Atoi(os.Getenv("TENURE_ROUNDS"))
	if err != nil || n < 1 {
		return usual
	}
	t.Logf("%d rounds", n)
	return n
}

// candidacies campaigns in every node, again and again, and reports each term.
type candidacies struct {
	won chan win
	end context.CancelFunc
}

type win struct {
	by   *child
	term *tenure.Term
	at   clock.Instant // when it began, in its process
}

func campaignAll(t *testing.T, cs ...*child) *candidacies {
	ctx, cancel := context.WithCancel(t.Context())
	a := &candidacies{won: make(chan win, 100), end: cancel}
	for _, c := range cs {
		a.join(ctx, c)
	}
	t.Cleanup(cancel)
	return a
}

func (a *candidacies) join(ctx context.Context, c *child) {
	go func() {
		for {
			term, err := c.Campaign(ctx)
			if err != nil {
				return
			}
			c.mu.Lock()
			at := c.terms[term.Token()].begun
			c.mu.Unlock()
			a.won <- win{c, term, at}
			select {
			case <-term.Context().Done():
				_ = term.Resign(ctx) // there is no work that has to return
			case <-c.done:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
}

// crashes kills leaders and returns how long it took until the next term began in its process,
// sorted, and how many leaders changed without a kill.
func (f *children) crashes(count int) (took []time.Duration, unprovoked int) {
	f.t.Helper()
	a := campaignAll(f.t, f.startAll()...)
	led := comes(f.t, "somebody leads", a.won)
	for {
		for len(a.won) > 0 {
			led = <-a.won
			unprovoked++
		}
		if f.pulse {
			ctx, cancel := within(patience)
			_, answers := led.by.ask(command{Do: "kept"})
			_, err := led.by.answer(ctx, answers)
			cancel()
			if err != nil {
				f.t.Fatalf("the keeper of %s: %v", led.by.id, err)
			}
		}
		killed := clock.System().Now()
		led.by.Crash()
		next := comes(f.t, "another leads", a.won)
		if next.term.Token() <= led.term.Token() {
			f.t.Errorf("token %d after %d", next.term.Token(), led.term.Token())
		}
		if next.at > killed {
			took = append(took, next.at.Sub(killed))
		} else {
			unprovoked++ // it had begun before the kill
		}
		if len(took) == count {
			slices.Sort(took)
			return took, unprovoked
		}
		back := f.start(led.by.id)
		a.join(f.t.Context(), back)
		led = next
		eventually(f.t, back.id+" has found the others", func() bool {
			l, err := back.Leader(f.t.Context())
			return err == nil && l.State == tenure.Led
		})
		time.Sleep(2 * f.timing.Heartbeat)
	}
}

// With the LAN preset, a leader that is killed is followed by another with a
// larger token, and comes back. How long that takes is reported, from the kill to
// the beginning of the new term in its process.
func TestLANCrash(t *testing.T) {
	timing := LAN()
	took, unprovoked := newChildren(t, "crash", timing, "a", "b", "c").crashes(rounds(t, 2))
	const bar, aim = 800 * time.Millisecond, 500 * time.Millisecond
	t.Logf("raft LAN: heartbeat %v, election %v, raft lease %v, beat %v; trust %v", timing.Heartbeat, timing.Election, timing.LeaderLease, timing.Beat, timing.window())
	t.Logf("raft LAN: crash failover rounds %d", len(took))
	t.Logf("raft LAN: crash failover p50 %v", percentile(took, 50))
	t.Logf("raft LAN: crash failover p95 %v, bar %v, aim %v: %s", percentile(took, 95), bar, aim, verdict(percentile(took, 95) <= bar))
	t.Logf("raft LAN: crash failover max %v", percentile(took, 100))
	t.Logf("raft LAN: changes of leader without a kill %d", unprovoked)
}

// With keepers a killed leader is replaced before its followers could lose their patience, which
// began at most a fifth of a Heartbeat before the kill.
func TestKilledLeaderWithKeeper(t *testing.T) {
	t.Parallel()
	const heartbeat = 8 * time.Second
	f := newChildren(t, "kept", Timing{Heartbeat: heartbeat, LeaderLease: 7 * time.Second}.Resolve(), "a", "b", "c")
	f.pulse = true
	if took, _ := f.crashes(1); took[0] > 3*heartbeat/4 {
		t.Errorf("it took %v of a Heartbeat of %v: nobody was told", took[0], heartbeat)
	}
}

// TestHeartbeats measures short Heartbeats, TENURE_BENCH_RAFT kills each, with and without keepers, and
// how often a leader is lost without a kill in TENURE_BURN, at rest and with all cores busy. With
// the fastest one that loses none, a keeper keeps the bars: 30 ms for half of the kills, 150 ms for
// 99 of 100.
func TestHeartbeats(t *testing.T) {
	if os.Getenv("TENURE_BENCH_RAFT") == "" {
		t.Skip("needs an idle machine: set TENURE_BENCH_RAFT to a number of kills, and TENURE_BURN to a duration")
	}
	kills, err := strconv.Atoi(os.Getenv("TENURE_BENCH_RAFT"))
	long, err2 := time.ParseDuration(os.Getenv("TENURE_BURN"))
	if err := errors.Join(err, err2); err != nil || kills < 1 {
		t.Fatal(kills, err)
	}
	t.Log("Heartbeat  lost at rest  lost on busy cores  kill p50  kill p99  with keeper p50  with keeper p99")
	for _, h := range []time.Duration{100 * time.Millisecond, 150 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond, 400 * time.Millisecond} {
		timing := Timing{Heartbeat: h, LeaderLease: 7 * h / 8, Beat: 5 * h / 8}.Resolve()
		rest, busy := 0, 0
		var took [2][]time.Duration
		t.Run(h.String(), func(t *testing.T) { rest = newChildren(t, "rest", timing, "a", "b", "c").lost(long, false) })
		t.Run(h.String(), func(t *testing.T) { busy = newChildren(t, "busy", timing, "a", "b", "c").lost(long, true) })
		for i := range took {
			t.Run(h.String(), func(t *testing.T) {
				f := newChildren(t, "kill", timing, "a", "b", "c")
				f.pulse = i == 1
				took[i], _ = f.crashes(kills)
			})
			if len(took[i]) == 0 {
				t.Fatalf("Heartbeat %v: no kills", h)
			}
		}
		p50, p99 := percentile(took[1], 50), percentile(took[1], 99)
		t.Logf("%-9v  %12d  %18d  %8v  %8v  %15v  %15v", h, rest, busy, percentile(took[0], 50), percentile(took[0], 99), p50, p99)
		if rest+busy == 0 {
			if p50 > 30*time.Millisecond || p99 > 150*time.Millisecond {
				t.Errorf("Heartbeat %v with keepers: p50 %v and p99 %v, the bars are 30 ms and 150 ms", h, p50, p99)
			}
			return
		}
	}
	t.Error("every Heartbeat lost leaders")
}

// percentile is the least of the sorted values that is not below p percent.
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[(len(sorted)*p+99)/100-1].Round(100 * time.Microsecond)
}

func verdict(ok bool) string {
	if ok {
		return "ok"
	}
	return "short"
}

// overlaps lists the terms that were believed after the next one was.
func overlaps(terms []event) (found []string) {
	slices.SortFunc(terms, func(a, b event) int { return cmp.Compare(a.Token, b.Token) })
	for i := 1; i < len(terms); i++ {
		for _, old := range terms[:i] {
			if d := old.Believed.Sub(terms[i].Begun); d >= 0 && old.Believed != 0 && terms[i].Begun != 0 {
				found = append(found, fmt.Sprintf("token %d was believed for %v after %d began", old.Token, d, terms[i].Token))
			}
		}
	}
	return found
}

// A leader that is cut off stops believing before another begins: both write down
// what they believe, on one clock. The cut takes both directions, or only that
// in which the answers come, or only that in which the heartbeats go; or the
// leader is paused until another leads, and nobody but its clock can tell it.
func TestCutOff(t *testing.T) {
	t.Parallel()
	timing := Timing{Heartbeat: 400 * time.Millisecond, LeaderLease: 400 * time.Millisecond, Commit: 20 * time.Millisecond}
	f := newChildren(t, "cut", timing, "a", "b", "c")
	a := campaignAll(t, f.startAll()...)
	led := comes(t, "somebody leads", a.won)
	tokens := map[fence.Token]bool{}
	for i := range rounds(t, 10) {
		id := led.by.id
		switch i % 4 {
		case 0:
			f.net.isolate(id)
		case 1: // answers to it are lost
			for _, other := range f.ids {
				if other != id {
					f.net.cut(other, id)
				}
			}
		case 2: // nothing of it arrives
			for _, other := range f.ids {
				if other != id {
					f.net.cut(id, other)
				}
			}
		case 3:
			led.by.Pause()
		}
		next := comes(t, "another leads", a.won)
		if next.by.id == id {
			t.Fatalf("round %d: %s leads again, and was cut off", i, id)
		}
		if next.term.Token() <= led.term.Token() || tokens[next.term.Token()] {
			t.Errorf("token %d after %d", next.term.Token(), led.term.Token())
		}
		tokens[next.term.Token()] = true
		led.by.Resume()
		if why := ended(t, led.term); !errors.Is(why, tenure.ErrLost) && !errors.Is(why, tenure.ErrExpired) {
			t.Errorf("token %d: %v", led.term.Token(), why)
		}
		f.net.heal("")
		led = next
		time.Sleep(timing.Heartbeat / 2)
		for len(a.won) > 0 {
			led = <-a.won
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.beliefs) < len(tokens) {
		t.Fatalf("only %d terms were taken down: nothing was tested", len(f.beliefs))
	}
	for _, o := range overlaps(f.beliefs) {
		t.Error(o)
	}
	var gap time.Duration = 1 << 62
	for i := 1; i < len(f.beliefs); i++ {
		gap = min(gap, f.beliefs[i].Begun.Sub(f.beliefs[i-1].Believed))
	}
	t.Logf("%d terms, the least time between two was %v", len(f.beliefs), gap)
}

// The judge sees an overlap.
func TestOverlaps(t *testing.T) {
	if o := overlaps([]event{{Token: 2, Begun: 50, Believed: 90}, {Token: 1, Begun: 10, Believed: 60}}); len(o) != 1 {
		t.Errorf("an overlap of 10 is judged %v", o)
	}
	if o := overlaps([]event{{Token: 2, Begun: 61, Believed: 90}, {Token: 1, Begun: 10, Believed: 60}}); len(o) != 0 {
		t.Errorf("a gap of 1 is judged %v", o)
	}
}

// lost runs the nodes for a time, with all cores busy if asked, and returns how often a leader was
// lost although nobody was killed.
func (f *children) lost(long time.Duration, busy bool) int {
	t := f.t
	t.Helper()
	a := campaignAll(t, f.startAll()...)
	led := comes(t, "somebody leads", a.won)
	for range runtime.NumCPU() {
		if !busy {
			break
		}
		burner := exec.Command(os.Args[0])
		burner.Env = append(os.Environ(), childEnv+"="+burn)
		burner.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := burner.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = burner.Process.Kill(); _ = burner.Wait() })
	}
	changes := 0
	start := time.Now()
	for timeout := time.After(long); ; {
		select {
		case w := <-a.won:
			changes++
			why := context.Cause(led.term.Context())
			t.Logf("raft: after %v token %d was followed by %d: %v", time.Since(start).Round(time.Second), led.term.Token(), w.term.Token(), why)
			led = w
			continue
		case <-timeout:
		}
		break
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(changes, len(f.beliefs))
}

// With every core of the machine kept busy for as long as TENURE_BURN says, the
// LAN preset changes no leader: how often it did is reported.
func TestLANBurner(t *testing.T) {
	long, err := time.ParseDuration(os.Getenv("TENURE_BURN"))
	if err != nil {
		t.Skip("keeps all cores busy: set TENURE_BURN to a duration")
	}
	lost := newChildren(t, "burner", LAN(), "a", "b", "c").lost(long, true)
	t.Logf("raft LAN: false failovers in %v with %d cores busy: %d, bar 0: %s", long, runtime.NumCPU(), lost, verdict(lost == 0))
}

// Of five processes two are cut off, the leader among them. Its belief ends before
// the three begin another term, the two answer nobody, and when all is healed
// there is one leader, whom nobody disturbed.
func TestSplit(t *testing.T) {
	t.Parallel()
	f := newChildren(t, "split", calm(), "a", "b", "c", "d", "e")
	nodes := f.startAll()
	a := campaignAll(t, nodes...)
	led := comes(t, "somebody leads", a.won)
	other := nodes[0]
	if other == led.by {
		other = nodes[1]
	}
	minority := []*child{led.by, other}
	majority := slices.DeleteFunc(slices.Clone(nodes), func(c *child) bool { return slices.Contains(minority, c) })
	f.net.split(led.by.id, other.id)
	ctx, cancel := within(3 * patience)
	defer cancel()
	// It still believes, and may: but it does not know, so it must not answer.
	if l, err := led.by.Leader(ctx); err == nil {
		t.Errorf("asked at once, the leader in the minority says %v without a quorum", l.State)
	}
	if why := ended(t, led.term); !errors.Is(why, tenure.ErrExpired) && !errors.Is(why, tenure.ErrLost) {
		t.Errorf("the leader in the minority: %v", why)
	}
	next := comes(t, "the majority elects another", a.won)
	if !slices.Contains(majority, next.by) || next.term.Token() <= led.term.Token() {
		t.Fatalf("%s leads with token %d after %d of %s, which was cut off with %s", next.by.id, next.term.Token(), led.term.Token(), led.by.id, other.id)
	}
	for _, c := range minority {
		if l, err := c.Leader(ctx); err == nil || !strings.Contains(err.Error(), ErrUnavailable.Error()) || l.State != tenure.Unknown {
			t.Errorf("%s, in the minority, says %v, %v: want unknown", c.id, l.State, err)
		}
		if l, err := c.read(ctx); err == nil {
			t.Errorf("%s, in the minority, reads locally that %q leads", c.id, l.Candidate.ID)
		}
	}
	f.net.heal("")
	for _, c := range nodes {
		eventually(t, c.id+" agrees", func() bool {
			l, err := c.Leader(ctx)
			return err == nil && l.Token == next.term.Token() && l.State == tenure.Led
		})
	}
	time.Sleep(2 * calm().Heartbeat)
	if err := next.term.Check(); err != nil {
		t.Errorf("healing disturbed the leader: %v", err)
	}
	if len(a.won) > 0 {
		t.Errorf("another leads with token %d", (<-a.won).term.Token())
	}
	a.end()
	if err := next.term.Resign(ctx); err != nil {
		t.Error(err)
	}
	eventually(t, "both terms are taken down", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.beliefs) >= 2
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range overlaps(f.beliefs) {
		t.Error(o)
	}
}
