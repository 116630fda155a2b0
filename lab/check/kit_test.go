package check

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// files are the events of a history by file.
type files map[string][]history.Event

const (
	extension    = ".ndjson"
	manifestFile = "manifest.json"

	kTTL  = time.Second
	kZero = clock.Instant(1_000_000_000_000)
	kWall = int64(1_800_000_000_000)
)

// world makes a history in which every guarantee holds and every kind of fault occurs.
type world struct {
	rng   *rand.Rand
	h     files
	now   clock.Instant
	token fence.Token
	node  int

	next       uint64
	alloc      uint64
	ticks      uint64
	checkpoint uint64
	firings    uint64
	due        int64
	faults     int
	pids       [4]int          // of the nodes 1 to 3
	writes     []history.Write // of the attempt
}

func good(seed uint64) files {
	w := &world{rng: rand.New(rand.NewPCG(seed, 1)), h: files{}, now: kZero, next: 1}
	w.due = kWall + 100
	for n := 1; n <= 3; n++ {
		w.start(n, kZero-clock.Instant(n))
	}
	ends := []func(){w.kill, w.pause, w.resign, w.transfer, w.cut, w.quorum, w.skew}
	w.rng.Shuffle(len(ends), func(i, j int) { ends[i], ends[j] = ends[j], ends[i] })
	for _, end := range ends {
		w.begin()
		w.work(w.span(150, 400))
		end()
	}
	w.begin()
	w.work(1500 * time.Millisecond) // longer than any fault
	run := history.Run{
		Experiment: "kit", Seed: seed, Engine: "etcd", Group: "billing", At: kZero, Nodes: 3,
		TTLMS: kTTL.Milliseconds(), BeatMS: 250, CallTimeoutMS: 250, BackoffMaxMS: 250, Drift: 0.02, TickMS: 1000,
		Jobs: []history.Job{
			{Key: "every", FirstMS: kWall + 100, EveryMS: 100, LastMS: w.due - 100},
			{Key: "single", FirstMS: kWall + 5},
		},
	}
	for _, name := range Names() {
		if name != "ledger" {
			run.Checks = append(run.Checks, name)
		}
	}
	w.h["run"] = []history.Event{run}
	for _, name := range []string{"calls", "engine", "nodes"} {
		slices.SortStableFunc(w.h[name], func(a, b history.Event) int { return cmp.Compare(history.When(a), history.When(b)) })
	}
	// Clients write their lines a little out of order.
	calls := w.h["calls"]
	for i := 0; i+7 < len(calls); i += 1 + w.rng.IntN(9) {
		j := i + w.rng.IntN(7)
		calls[i], calls[j] = calls[j], calls[i]
	}
	return w.h
}

func (w *world) add(file string, e history.Event) { w.h[file] = append(w.h[file], e) }

func (w *world) span(from, to int) time.Duration {
	return time.Duration(from+w.rng.IntN(to-from)) * time.Millisecond
}

// start starts a process of a node.
func (w *world) start(n int, at clock.Instant) {
	w.pids[n] = 100*n + w.pids[n]%100 + 1
	w.add("nodes", history.Process{Node: fmt.Sprintf("node-%d", n), PID: w.pids[n], At: at})
}

// proof of a fault of the leader.
func (w *world) proof(kind string) history.Proof {
	return history.Proof{Kind: kind, PIDs: []int{w.pids[w.node]}}
}

func (w *world) id() string { return fmt.Sprintf("node-%d", w.node) }

func wall(at clock.Instant) int64 { return kWall + at.Sub(kZero).Milliseconds() }

func (w *world) begin() {
	w.token++
	w.node = (w.node+w.rng.IntN(2))%3 + 1 // another node than before
	w.add("engine", history.Grant{State: history.Led, Token: w.token, Holder: w.id(), At: w.now})
	w.now = w.now.Add(time.Millisecond)
	w.add("nodes", history.Belief{Node: w.id(), Token: w.token, State: history.Began, At: w.now})
	w.now = w.now.Add(time.Millisecond)
	w.add("nodes", history.Seal{Node: w.id(), Token: w.token, At: w.now, End: w.now.Add(time.Millisecond)})
	w.now = w.now.Add(2 * time.Millisecond)
}

func (w *world) ended(at clock.Instant, cause string) {
	w.add("nodes", history.Belief{Node: w.id(), Token: w.token, State: history.Ended, At: at, Cause: cause})
	w.add("nodes", history.Belief{Node: w.id(), Token: w.token, State: history.Refused, At: at.Add(time.Millisecond)})
}

func (w *world) vacant(at clock.Instant) {
	w.add("engine", history.Grant{State: history.Vacant, Token: w.token, At: at})
}

func (w *world) fault(f history.Fault) {
	w.faults++
	f.ID = fmt.Sprint(w.faults)
	begun := f
	begun.Healed, begun.Evidence, begun.Proof = 0, "", history.Proof{}
	w.add("faults", begun)
	w.add("faults", f)
}

// work adds attempts of the leader, their effects, and the calls that they answer.
func (w *world) work(d time.Duration) {
	for end := w.now.Add(d); w.now < end; w.now = w.now.Add(w.span(8, 24)) {
		done := w.now.Add(2 * time.Millisecond)
		first := w.next
		for range 1 + w.rng.IntN(4) {
			w.call(done)
		}
		w.alloc++
		w.effect(history.Effect{What: history.EffectSequence, Name: "next", N: w.alloc, First: first, Last: w.next - 1})
		if w.alloc%5 == 0 {
			w.ticks++
			w.effect(history.Effect{What: history.EffectTick, N: w.ticks, InstantMS: int64(w.ticks) * 1000})
		}
		if w.alloc == 3 {
			w.effect(history.Effect{What: history.EffectFiring, Name: "single", InstantMS: kWall + 5})
		}
		for ; w.due <= wall(w.now); w.due += 100 {
			w.effect(history.Effect{What: history.EffectFiring, Name: "every", InstantMS: w.due})
		}
		w.attempt(done)
	}
}

// attempt adds the attempt that asks for the effects so far.
func (w *world) attempt(done clock.Instant) {
	w.add("nodes", history.Attempt{Node: w.id(), Token: w.token, At: w.now, End: done, Outcome: history.OutcomeOK, Writes: w.writes})
	w.writes = nil
}

func (w *world) effect(e history.Effect) {
	if e.What == history.EffectFiring {
		w.firings++
		e.N = w.firings
	}
	e.Token, e.Holder, e.AtMS = w.token, w.id(), wall(w.now)
	w.writes = append(w.writes, history.Write{What: e.What, Name: e.Name, First: e.First, Last: e.Last, InstantMS: e.InstantMS})
	w.add("ledger", e)
}

func (w *world) call(done clock.Instant) {
	c := history.Call{
		Start: w.now - clock.Instant(w.rng.IntN(8_000_000)), End: done + clock.Instant(w.rng.IntN(4_000_000)),
		Node: w.id(), Token: w.token, First: w.next,
	}
	c.Last = c.First + uint64(w.rng.IntN(3))
	w.next = c.Last + 1
	switch w.rng.IntN(40) {
	case 0: // nobody has its numbers
		c = history.Call{Start: c.Start, End: c.End, Node: c.Node, Error: "timeout", Unknown: true}
	case 1:
		w.add("calls", history.Call{Start: c.Start, End: c.End, Error: "no_leader"})
	}
	w.add("calls", c)
}

func (w *world) kill() {
	w.fault(history.Fault{Name: "kill-leader", Class: history.ClassKill, Target: w.id(), Begun: w.now, Healed: w.now.Add(kTTL), Evidence: "exited by signal 9", Proof: w.proof(history.ProofExited)})
	w.start(w.node, w.now.Add(kTTL))
	w.vacant(w.now.Add(kTTL))
	w.now = w.now.Add(kTTL + 5*time.Millisecond)
}

func (w *world) pause() {
	wake := w.now.Add(kTTL + 800*time.Millisecond)
	w.fault(history.Fault{
		Name: "gc-pause-leader", Class: history.ClassPause, Target: w.id(), Begun: w.now, Set: w.now.Add(3 * time.Millisecond), Held: wake.Add(-5 * time.Millisecond),
		Healed: wake, Evidence: "its write was refused", Proof: w.proof(history.ProofStopped),
	})
	woken := wake.Add(time.Millisecond)
	w.add("nodes", history.Attempt{Node: w.id(), Token: w.token, At: woken, End: woken.Add(time.Millisecond), Outcome: history.OutcomeRefused})
	w.ended(wake.Add(2*time.Millisecond), "lost")
	zombie := history.Effect{What: history.EffectSequence, Name: "next", Token: w.token, Holder: w.id(), Refused: "stale", Current: w.token + 1, AtMS: wall(woken)}
	w.vacant(w.now.Add(kTTL))
	w.now = w.now.Add(kTTL + 5*time.Millisecond)
	w.begin()
	w.work(1500 * time.Millisecond)
	w.add("ledger", zombie)
	w.resign()
}

func (w *world) resign() { w.handover("resigned") }

func (w *world) transfer() { w.handover("transferred") }

func (w *world) handover(cause string) {
	w.ended(w.now, cause)
	w.now = w.now.Add(2 * time.Millisecond)
	w.checkpoint++
	w.effect(history.Effect{What: history.EffectCheckpoint, Name: "handover", N: w.checkpoint})
	w.attempt(w.now.Add(time.Millisecond))
	if cause == "resigned" {
		w.vacant(w.now.Add(2 * time.Millisecond))
	}
	w.now = w.now.Add(3 * time.Millisecond)
}

func (w *world) cut() {
	w.fault(history.Fault{Name: "partition-leader", Target: w.id(), Begun: w.now, Healed: w.now.Add(1200 * time.Millisecond), Evidence: "no beat for 1.2s", Proof: history.Proof{Kind: history.ProofFelt}})
	from := w.now
	w.work(900 * time.Millisecond)
	w.ended(from.Add(kTTL*95/100), "expired")
	w.vacant(from.Add(kTTL))
	w.now = from.Add(kTTL + 5*time.Millisecond)
}

func (w *world) quorum() {
	heal := w.now.Add(2500 * time.Millisecond)
	w.fault(history.Fault{Name: "quorum-lost", Class: history.ClassQuorum, Target: "engine", Begun: w.now, Set: w.now.Add(20 * time.Millisecond), Held: heal.Add(-time.Millisecond), Healed: heal, Evidence: "reads fail", Proof: history.Proof{Kind: history.ProofFelt}})
	w.fault(history.Fault{Name: "quorum-lost by", PartOf: "quorum-lost", Target: "engine-1", Begun: w.now, Healed: heal})
	from := w.now
	w.work(900 * time.Millisecond)
	w.ended(from.Add(kTTL*95/100), "expired")
	w.add("engine", history.Grant{State: history.Blind, At: from.Add(600 * time.Millisecond)})
	w.vacant(heal.Add(100 * time.Millisecond))
	w.now = heal.Add(200 * time.Millisecond)
}

func (w *world) skew() {
	w.fault(history.Fault{Name: "flap", Target: w.id(), Begun: w.now, Healed: w.now, Missed: "it left no trace"})
	w.fault(history.Fault{Name: "skew-leader", Target: w.id(), Begun: w.now, Healed: w.now.Add(300 * time.Millisecond), Evidence: "its clock is 200ms ahead", Proof: history.Proof{Kind: history.ProofMeasured}})
	w.work(400 * time.Millisecond)
	w.resign()
}

// unsynced hides that it is a file, since hundreds of fsyncs would slow the tests down.
type unsynced struct{ io.WriteCloser }

// save writes a history and returns its directory.
func (h files) save(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for name, events := range h {
		f, err := os.Create(filepath.Join(dir, name+extension))
		if err != nil {
			t.Fatal(err)
		}
		w := history.NewWriter(name, unsynced{f}, 1<<40)
		for _, e := range events {
			if err := w.Write(e); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := history.WriteManifest(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (h files) check(t testing.TB) verdict.Report {
	t.Helper()
	r, err := Dir(t.Context(), h.save(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// find returns the lines (from 0) of a file that hold such an event.
func find[E history.Event](h files, file string, such func(E) bool) []int {
	var all []int
	for i, e := range h[file] {
		if e, ok := e.(E); ok && such(e) {
			all = append(all, i)
		}
	}
	return all
}

// edit changes one line.
func edit[E history.Event](h files, file string, i int, change func(*E)) {
	e := h[file][i].(E)
	change(&e)
	h[file][i] = e
}

func (h files) remove(file string, i int) { h[file] = slices.Delete(h[file], i, i+1) }

func (h files) insert(file string, i int, e history.Event) { h[file] = slices.Insert(h[file], i, e) }
