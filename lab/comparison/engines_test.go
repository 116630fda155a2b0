package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
	consulstore "github.com/tenurehq/tenure/store/consul"
	"github.com/tenurehq/tenure/store/kubernetes"
	"github.com/tenurehq/tenure/store/postgres"
	redisstore "github.com/tenurehq/tenure/store/redis"
	"github.com/tenurehq/tenure/store/zookeeper"
)

// benched has one row for each engine: its smallest TTL, and the usual way to elect with it.
var benched = []struct {
	engine   string
	ttl      time.Duration
	peer     string
	handover time.Duration // the bar of its median
	// closes: the peer's lock ends when the engine sees that the connection is closed, and has no TTL.
	closes bool
	opts   []servertest.Option
}{
	{engine: "postgres", ttl: postgres.Caps().MinTTL, peer: advisoryLock, handover: 30 * time.Millisecond, closes: true},
	{engine: "kubernetes", ttl: kubernetes.Caps().MinTTL, peer: clientGo, handover: 100 * time.Millisecond},
	{engine: "consul", ttl: consulstore.Caps().MinTTL, peer: consulAPI, handover: 30 * time.Millisecond, opts: []servertest.Option{servertest.Args("-hcl", `session_ttl_min = "1s"`)}},
	{engine: "zookeeper", ttl: zookeeper.Caps().MinTTL, peer: zkLock, handover: 30 * time.Millisecond},
	{engine: "redis", ttl: redisstore.Caps().MinTTL, peer: redsyncLock, handover: 30 * time.Millisecond},
}

const (
	crashed = "killed"
	cutOff  = "cut off"
	handed  = "handover"

	ratioBar = 1.1
)

// The failovers and handovers of docs/benchmarks.md and their bars. TENURE_BENCH_ENGINES is the
// number of rounds; make bench-engines sets 20. Tenure and the peer run side by side, one engine
// after the other.
func TestEngines(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("TENURE_BENCH_ENGINES"))
	if err != nil {
		t.Skip("a benchmark: make bench-engines")
	}
	b := &engineBench{took: map[measured][]time.Duration{}}
	for _, e := range benched {
		t.Run(e.engine, func(t *testing.T) {
			fmt.Fprintf(os.Stderr, "bench: %s, %d rounds\n", e.engine, n)
			etcd := ""
			if servertest.NeedsEtcd(e.engine) {
				etcd = enginetest.Cluster(t, 1).Endpoints()[0]
			}
			server, err := servertest.Start(e.engine, etcd, e.opts...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(server.Stop)
			// at is an arena behind an address of the engine.
			at := func(t *testing.T, library, addr string) (arena, candidacy) {
				c := candidacy{Engine: addr, TTL: e.ttl}
				if library == tenureLead {
					if c.Store, err = server.Store(addr, t.TempDir()); err != nil {
						t.Fatal(err)
					}
				}
				return arena{library: library, engine: addr, secret: servertest.AdminToken}, c
			}
			t.Run("crashes", func(t *testing.T) {
				for _, library := range []string{tenureLead, e.peer} {
					t.Run(library, func(t *testing.T) {
						t.Parallel()
						a, c := at(t, library, server.Addr())
						c.Group = "crash"
						b.rounds(t, measured{e.engine, library, crashed}, n, a, c, func(leader, next *standing) time.Duration {
							killed := time.Now()
							leader.Kill()
							return next.must(evLeads).At.Sub(killed)
						})
					})
				}
			})
			a, c := at(t, tenureLead, server.Addr())
			c.Group = "handover"
			b.rounds(t, measured{e.engine, tenureLead, handed}, n, a, c, func(leader, next *standing) time.Duration {
				leader.ask(askStop)
				return next.must(evLeads).At.Sub(leader.must(evReturned).At)
			})
			if e.closes {
				for _, library := range []string{tenureLead, e.peer} {
					b.cutOff(t, measured{e.engine, library, cutOff}, max(1, n/10), func(addr string) (arena, candidacy) { return at(t, library, addr) }, server.Addr())
				}
			}
		})
	}
	b.report(t)
}

// measured names a series.
type measured struct{ engine, library, what string }

type engineBench struct {
	mu   sync.Mutex
	took map[measured][]time.Duration
}

func (b *engineBench) add(m measured, d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.took[m] = append(b.took[m], d)
}

func (b *engineBench) median(m measured) time.Duration {
	s := slices.Sorted(slices.Values(b.took[m]))
	if len(s) == 0 {
		return 0
	}
	return s[(len(s)-1)/2]
}

// rounds replaces the leader of two candidates repeatedly, at a random moment between two
// keep-alives. A leader that was lost before its round is replaced, and counted.
func (b *engineBench) rounds(t *testing.T, m measured, n int, a arena, c candidacy, replace func(leader, next *standing) time.Duration) {
	t.Helper()
	ids := 0
	stand := func() *standing {
		ids++
		c.ID = fmt.Sprintf("c%d", ids)
		return a.stands(t, c)
	}
	leader := stand()
	leader.must(evLeads)
	next := stand()
	for done, lost := 0, 0; done < n; {
		time.Sleep(time.Second + rand.N(c.TTL/2))
		if next.count(evLeads) > 0 || leader.count(evDoubts) > 0 {
			if lost++; lost > n {
				t.Fatalf("%s on %s lost its leader %d times while nothing was done to it", m.library, m.engine, lost)
			}
			leader.Kill()
			next.must(evLeads)
		} else {
			b.add(m, replace(leader, next))
			done++
		}
		leader, next = next, stand()
	}
	leader.Kill()
	next.Kill()
}

// cutOff measures how long nobody else leads when the leader is cut off without a word, as a machine
// that has lost its power is. After ten TTLs it gives up.
func (b *engineBench) cutOff(t *testing.T, m measured, n int, at func(addr string) (arena, candidacy), server string) {
	t.Helper()
	for i := range n {
		proxy := enginetest.NewProxy(t, server)
		behind, c := at(proxy.Addr())
		c.ID, c.Group = first, fmt.Sprintf("cut-%d", i)
		leader := behind.stands(t, c)
		leader.must(evLeads)
		direct, c := at(server)
		c.ID, c.Group = second, fmt.Sprintf("cut-%d", i)
		next := direct.stands(t, c)
		time.Sleep(2 * time.Second)
		cut := time.Now()
		proxy.Cut()
		limit := 10 * c.TTL
		if e, ok := next.first(evLeads, limit); ok {
			limit = e.At.Sub(cut)
		}
		b.add(m, limit)
		next.Kill()
		leader.Kill()
	}
}

func (b *engineBench) report(t *testing.T) {
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	defer func() { _ = w.Flush() }()
	line := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")+"\t") }
	show := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
	line("\nwhat", "engine", "by", "TTL", "rounds", "min", "p50", "max")
	for _, what := range []string{crashed, cutOff, handed} {
		for _, e := range benched {
			for _, library := range []string{tenureLead, e.peer} {
				m := measured{e.engine, library, what}
				if s := b.took[m]; len(s) > 0 {
					line(what, e.engine, library, e.ttl.String(), strconv.Itoa(len(s)), show(slices.Min(s)), show(b.median(m)), show(slices.Max(s)))
				}
			}
		}
	}
	line("\nbar", "value", "must be", "")
	bar := func(ok bool, name, value, must string) {
		verdict := "ok"
		if !ok {
			verdict = "missed"
			t.Fail()
		}
		line(name, value, must, verdict)
	}
	for _, e := range benched {
		what := crashed
		if e.closes {
			what = cutOff // by its TTL; a killed peer's connection is closed, which is shown above
		}
		our, peer := b.median(measured{e.engine, tenureLead, what}), b.median(measured{e.engine, e.peer, what})
		ratio := float64(our) / float64(max(peer, 1))
		bar(our > 0 && peer > 0 && ratio <= ratioBar, fmt.Sprintf("%s: leader %s, p50, beside %s", e.engine, what, e.peer), fmt.Sprintf("%s, %.2f × of %s", show(our), ratio, show(peer)), fmt.Sprintf("<= %.1f ×", ratioBar))
		m := measured{e.engine, tenureLead, handed}
		gaps := b.took[m]
		bar(len(gaps) > 0 && b.median(m) <= e.handover, e.engine+": handover, p50", show(b.median(m)), "<= "+show(e.handover))
		bar(len(gaps) > 0 && slices.Min(gaps) >= 0, e.engine+": handover, shortest gap", show(slices.Min(append(gaps, e.handover))), ">= 0")
	}
}
