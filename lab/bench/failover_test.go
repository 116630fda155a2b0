//go:build linux

package bench

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/raft"
)

// The figures of docs/engines.md and their bars. TENURE_BENCH is the number of rounds; make
// bench-failover sets 30.
func TestFailover(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("TENURE_BENCH"))
	if err != nil {
		t.Skip("a benchmark: make bench-failover")
	}
	b := &bench{t: t, figures: map[figure]series{}}
	cluster := enginetest.Cluster(t, 3)
	ttls := []time.Duration{2 * time.Second, 3 * time.Second, 10 * time.Second}

	progress("hand-overs on etcd, %d rounds each", rounds)
	const turns = 3 // alternate, so that other load affects both alike
	for turn := range turns {
		for _, kind := range []string{onEtcd, stock} {
			r := role{Kind: kind, Endpoints: cluster.Endpoints(), TTL: 3 * time.Second, Group: fmt.Sprintf("hand-over-%d", turn)}
			b.handOvers(r, (rounds+turns-1)/turns)
		}
	}
	progress("hand-overs on raft, LAN preset, %d rounds each", rounds)
	lan := newFleet(t, 3, raft.LAN())
	b.raftHandOvers(lan, rounds)
	progress("crashes on raft, LAN preset, %d rounds", rounds)
	b.raftCrashes(lan, figure{onRaft, "crash, LAN preset", 0}, rounds)
	lan.stop()

	progress("crashes at TTLs of %v, %d rounds (a third at 10 s), side by side", ttls, rounds)
	t.Run("crashes", func(t *testing.T) {
		for _, ttl := range ttls {
			n := rounds
			if ttl >= 10*time.Second {
				n = max(1, rounds/3)
			}
			for _, kind := range []string{onEtcd, stock} {
				t.Run(fmt.Sprint(kind, ttl), func(t *testing.T) {
					t.Parallel()
					b.crashes(t, role{Kind: kind, Endpoints: cluster.Endpoints(), TTL: ttl, Group: fmt.Sprintf("crash-%s", ttl)}, n)
				})
			}
			t.Run(fmt.Sprint(onRaft, ttl), func(t *testing.T) {
				t.Parallel()
				f := newFleet(t, 3, raft.Timing{Heartbeat: ttl}.Resolve())
				b.raftCrashes(f, figure{onRaft, "crash", ttl}, n)
			})
		}
	})
	if !t.Failed() {
		b.report(ttls)
	}
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}

// figure is the name of a series.
type figure struct {
	kind, what string
	ttl        time.Duration
}

// series are durations; reading sorts them.
type series []time.Duration

func (s series) at(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[max(0, min(len(sorted)-1, int(q*float64(len(sorted))+0.999999)-1))]
}

type bench struct {
	t *testing.T

	mu      sync.Mutex
	figures map[figure]series
}

func (b *bench) add(f figure, d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.figures[f] = append(b.figures[f], d)
}

func sleep(d time.Duration) { time.Sleep(d) }

// The handovers that are measured, from the end of the old term to the beginning of the new
// one. The successor has watched for a while, or has just arrived.
const (
	transfer = "transfer"
	fresh    = "transfer to one that just arrived"
	resign   = "resign, 3 candidates"
	crash    = "crash"
)

// of is the i-th candidate. Each connects to another member of the engine first.
func (r role) of(i int) role {
	r.ID = string(rune('a' + i))
	r.Endpoints = slices.Concat(r.Endpoints[i:], r.Endpoints[:i])
	return r
}

// handOvers hands one group over among three candidates.
func (b *bench) handOvers(r role, rounds int) {
	t := b.t
	var all []*candidate
	for i := range 3 {
		all = append(all, start(t, r.of(i)))
	}
	leader := 0
	all[0].order("campaign", "")
	all[0].await("began")

	// Only the successor waits, so that both kinds of election must give it the group.
	next := 1
	hand := func(what string, settle time.Duration) {
		to := all[next]
		to.order("campaign", "")
		sleep(settle)
		all[leader].order("transfer", to.ID)
		ended := all[leader].await("ended")
		began := to.await("began")
		b.add(figure{r.Kind, what, 0}, began.Sub(ended))
		leader, next = next, (next+1)%3
	}
	for range rounds {
		hand(transfer, 500*time.Millisecond)
	}
	waits := map[int]bool{}
	for range rounds {
		for i, c := range all {
			if i != leader && !waits[i] {
				c.order("campaign", "")
				waits[i] = true
			}
		}
		sleep(500 * time.Millisecond)
		all[leader].order("resign", "")
		ended := all[leader].await("ended")
		who, began := first(t, all, leader)
		b.add(figure{r.Kind, resign, 0}, began.Sub(ended))
		leader = who
		delete(waits, who)
	}
	// Stop the other two: their sessions would delay it.
	for i, c := range all {
		if i != leader {
			c.kill()
		}
	}
	sleep(r.TTL + 2*time.Second)
	for range rounds {
		// A new process with a new name, since the session of the old one may not have expired.
		next = (leader + 1) % len(all)
		all[next].kill()
		newcomer := all[next].role
		newcomer.ID += "x"
		all[next] = start(t, newcomer)
		hand(fresh, 0)
	}
	for _, c := range all {
		c.kill()
	}
}

// first waits for the next leader.
func first(t *testing.T, all []*candidate, but int) (int, clock.Instant) {
	t.Helper()
	limit := time.Now().Add(2 * time.Minute)
	for time.Now().Before(limit) {
		for i, c := range all {
			if i == but || c == nil {
				continue
			}
			select {
			case n, ok := <-c.news:
				switch {
				case !ok, n.What == "failed":
					t.Fatalf("%s %s: %s", c.Kind, c.ID, n.Error)
				case n.What == "began":
					return i, n.At
				}
			default:
			}
		}
		sleep(2 * time.Millisecond) // the news carry their own time
	}
	t.Fatal("nobody leads after two minutes")
	return 0, 0
}

// crashes kills the leader of three candidates repeatedly.
func (b *bench) crashes(t *testing.T, r role, rounds int) {
	var all []*candidate
	for i := range 3 {
		all = append(all, start(t, r.of(i)))
		all[i].order("campaign", "")
		if i == 0 {
			all[0].await("began")
		}
	}
	leader := 0
	for range rounds {
		// At a random moment between two beats, when all candidates are ready.
		sleep(time.Second + rand.N(r.TTL/2))
		at := clock.System().Now()
		all[leader].kill()
		who, began := first(t, all, leader)
		b.add(figure{r.Kind, crash, r.TTL}, began.Sub(at))
		all[leader] = start(t, all[leader].role)
		all[leader].order("campaign", "")
		leader = who
	}
}

// fleet is a Raft cluster of candidates.
type fleet struct {
	t     *testing.T
	roles []role
	all   []*candidate
}

func newFleet(t *testing.T, n int, timing raft.Timing) *fleet {
	t.Helper()
	f := &fleet{t: t}
	dir, peers := t.TempDir(), map[string]string{}
	ports, err := child.FreePorts(n)
	if err != nil {
		t.Fatal(err)
	}
	for i, addr := range ports {
		peers[string(rune('a'+i))] = addr
	}
	for _, id := range slices.Sorted(maps.Keys(peers)) {
		r := role{Kind: onRaft, ID: id, Group: "g", Peers: peers, DataDir: filepath.Join(dir, id), Timing: timing}
		f.roles = append(f.roles, r)
		f.all = append(f.all, start(t, r))
	}
	for _, c := range f.all {
		c.order("campaign", "")
	}
	return f
}

func (f *fleet) stop() {
	for _, c := range f.all {
		c.kill()
	}
}

// raftCrashes kills the leader of a fleet in which all nodes campaign.
func (b *bench) raftCrashes(f *fleet, what figure, rounds int) {
	leader, _ := first(f.t, f.all, -1)
	for range rounds {
		sleep(2*time.Second + rand.N(f.roles[0].Timing.Heartbeat))
		at := clock.System().Now()
		f.all[leader].kill()
		who, began := first(f.t, f.all, leader)
		b.add(what, began.Sub(at))
		f.all[leader] = start(f.t, f.roles[leader])
		f.all[leader].order("campaign", "")
		leader = who
	}
}

// raftHandOvers leaves the fleet as raftCrashes needs it: with a node that is about to lead.
func (b *bench) raftHandOvers(f *fleet, rounds int) {
	leader, _ := first(f.t, f.all, -1)
	for range rounds {
		sleep(500 * time.Millisecond)
		next := (leader + 1) % len(f.all)
		f.all[leader].order("transfer", f.all[next].ID)
		ended := f.all[leader].await("ended")
		b.add(figure{onRaft, transfer, 0}, f.all[next].await("began").Sub(ended))
		f.all[leader].order("campaign", "")
		leader = next
	}
	for range rounds {
		sleep(500 * time.Millisecond)
		f.all[leader].order("resign", "")
		ended := f.all[leader].await("ended")
		who, began := first(f.t, f.all, leader)
		b.add(figure{onRaft, resign, 0}, began.Sub(ended))
		f.all[leader].order("campaign", "")
		leader = who
	}
	f.all[leader].order("resign", "")
	f.all[leader].await("ended")
	f.all[leader].order("campaign", "")
}

func (b *bench) report(ttls []time.Duration) {
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	line := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")+"\t") }
	line("\nwhat", "engine", "TTL", "rounds", "p50", "p95", "max")
	row := func(f figure) {
		s := b.figures[f]
		if len(s) == 0 {
			b.t.Errorf("%s, %s: nothing was measured", f.what, f.kind)
		}
		ttl := "-"
		if f.ttl > 0 {
			ttl = f.ttl.String()
		}
		line(f.what, f.kind, ttl, strconv.Itoa(len(s)), ms(s.at(0.5)), ms(s.at(0.95)), ms(s.at(1)))
	}
	for _, what := range []string{transfer, fresh, resign} {
		for _, kind := range []string{onEtcd, stock, onRaft} {
			if what != fresh || kind != onRaft {
				row(figure{kind, what, 0})
			}
		}
	}
	for _, ttl := range ttls {
		for _, kind := range []string{onEtcd, stock, onRaft} {
			row(figure{kind, crash, ttl})
		}
	}
	row(figure{onRaft, "crash, LAN preset", 0})
	_ = w.Flush()

	line("\nbar", "value", "must be", "")
	bar := func(ok bool, name, value, must string) {
		verdict := "ok"
		if !ok {
			verdict = "short"
			b.t.Fail()
		}
		line(name, value, must, verdict)
	}
	atMost := func(name string, got, most time.Duration, why string) {
		bar(got <= most, name, ms(got), fmt.Sprintf("<= %s%s", ms(most), why))
	}
	for _, ttl := range ttls {
		s := b.figures[figure{onEtcd, crash, ttl}]
		atMost(fmt.Sprintf("etcd: crash at TTL %v, p95", ttl), s.at(0.95), ttl+time.Second, " (TTL + 1 s)")
		atMost(fmt.Sprintf("etcd: crash at TTL %v, max", ttl), s.at(1), ttl+2*time.Second, " (TTL + 2 s)")
	}
	for _, what := range []string{transfer, fresh} {
		our, their := b.figures[figure{onEtcd, what, 0}], b.figures[figure{stock, what, 0}]
		ratio := float64(our.at(0.5)) / float64(their.at(0.5))
		bar(ratio <= 1, "etcd: "+what+", p50", fmt.Sprintf("%s, %.2f × of Election's", ms(our.at(0.5)), ratio), "<= 1.0 ×")
		atMost("etcd: "+what+", p99", our.at(0.99), max(10*time.Millisecond, their.at(0.99)+5*time.Millisecond), " (10 ms, or Election's + 5 ms)")
	}
	resigned, theirs := b.figures[figure{onEtcd, resign, 0}].at(0.5), b.figures[figure{stock, resign, 0}].at(0.5)
	ratio := float64(resigned) / float64(theirs)
	bar(ratio <= 1.3, "etcd: resign, 3 candidates, p50", fmt.Sprintf("%s, %.2f × of Election's", ms(resigned), ratio), "<= 1.3 ×")
	lan := b.figures[figure{onRaft, "crash, LAN preset", 0}]
	atMost("raft: crash, LAN preset, p95", lan.at(0.95), 800*time.Millisecond, " (aim 500 ms)")
	_ = w.Flush()
}

// ms shows tenths below 100 ms. Above that, runs differ by more.
func ms(d time.Duration) string {
	digits := 1
	if d >= 100*time.Millisecond {
		digits = 0
	}
	return strconv.FormatFloat(float64(d.Microseconds())/1000, 'f', digits, 64) + " ms"
}
