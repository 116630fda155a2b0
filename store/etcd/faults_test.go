package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
)

// rounds is how often a test repeats what it shows; make test-long sets more.
func rounds(t *testing.T, usual int) int {
	n, err := strconv.Atoi(os.Getenv("TENURE_ROUNDS"))
	if err != nil {
		return usual
	}
	t.Logf("%d rounds", n)
	return n
}

func node(t *testing.T, s store.Store, id string, timing lease.Timing, scope ...string) *lease.Node {
	t.Helper()
	n, err := lease.New(s, lease.Config{Candidate: tenure.Candidate{ID: id}, Scope: scope, Timing: timing})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = n.Close(ctx)
	})
	return n
}

func elector(t *testing.T, n *lease.Node, group string) *lease.Elector {
	t.Helper()
	e, err := n.Elector(group)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func lead(t *testing.T, e *lease.Elector) *tenure.Term {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	term, err := e.Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// One member of three that is stopped, black-holed or killed costs no session:
// thirty processes with a TTL of 5 s go on leading.
func TestMemberLost(t *testing.T) {
	cluster := enginetest.Cluster(t, 3)
	var proxies []*enginetest.Proxy
	var endpoints []string
	for _, m := range cluster.Members {
		p := m.Proxy()
		proxies = append(proxies, p)
		endpoints = append(endpoints, p.Endpoint())
	}
	leader := leaderOf(t, cluster)
	const processes = 30
	var terms []*tenure.Term
	for i := range processes {
		// Each begins with another member, so that every member has its share.
		mine := append(append([]string(nil), endpoints[i%3:]...), endpoints[:i%3]...)
		group := fmt.Sprintf("g%d", i)
		terms = append(terms, lead(t, elector(t, node(t, open(t, mine), fmt.Sprintf("n%d", i), lease.Timing{TTL: 5 * time.Second}, group), group)))
	}
	for _, fault := range []struct {
		name         string
		strike, heal func()
	}{
		// Not resumed: a leader of etcd that goes on after a pause may revoke leases
		// that the others have kept alive (docs/engines.md).
		{"stopped", leader.Pause, func() { leader.Kill(); leader.Restart() }},
		{"black-holed", proxies[1].Cut, proxies[1].Heal},
		{"killed", cluster.Members[2].Kill, cluster.Members[2].Restart},
	} {
		fault.strike()
		wait(t, 12*time.Second) // more than two TTLs
		for i, term := range terms {
			if err := term.Check(); err != nil {
				t.Errorf("with one member %s process %d lost its session: %v", fault.name, i, err)
			}
		}
		fault.heal()
		wait(t, 2*time.Second)
	}
}

// wait lets real time pass: the fault has to last longer than a lease.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// A leader whose client is cut off stops believing before the next one begins:
// both beliefs are read on one clock.
func TestNoOverlap(t *testing.T) {
	cluster := enginetest.Cluster(t, 3, enginetest.FastTicks())
	timing := lease.Timing{TTL: 2 * time.Second}
	type road struct {
		store   *etcd.Store
		proxies []*enginetest.Proxy
	}
	var roads [2]road
	for i := range roads {
		var endpoints []string
		for _, m := range cluster.Members {
			p := m.Proxy()
			roads[i].proxies = append(roads[i].proxies, p)
			endpoints = append(endpoints, p.Endpoint())
		}
		roads[i].store = open(t, endpoints)
	}
	nodes := [2]*lease.Node{
		node(t, roads[0].store, "a", timing, "g"),
		node(t, roads[1].store, "b", timing, "g"),
	}
	now := clock.System()
	leader, term := 0, lead(t, elector(t, nodes[0], "g"))
	for round := range rounds(t, 3) {
		other := 1 - leader
		next := make(chan *tenure.Term, 1)
		began := make(chan clock.Instant, 1)
		var all sync.WaitGroup
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			won, err := elector(t, nodes[other], "g").Campaign(ctx)
			began <- now.Now()
			if err != nil {
				t.Error(err)
			}
			next <- won
		})
		wait(t, time.Second)
		for _, p := range roads[leader].proxies {
			p.Cut()
		}
		var believed clock.Instant
		for {
			at := now.Now()
			if term.Check() != nil {
				break
			}
			believed = at
			time.Sleep(200 * time.Microsecond)
		}
		start := <-began
		all.Wait()
		if start <= believed {
			t.Errorf("round %d: the new term began %v before the old one stopped believing", round, believed.Sub(start))
		}
		t.Logf("round %d: gap %v", round, start.Sub(believed))
		for _, p := range roads[leader].proxies {
			p.Heal()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_ = term.Resign(ctx)
		cancel()
		leader, term = other, <-next
		if term == nil {
			t.FailNow()
		}
	}
}

// With both followers stopped no beat counts, no grant is made and reads fail
// with an error that says why, while what was known before can be recalled with
// its age; when they are back everything goes on by itself.
func TestQuorumLost(t *testing.T) {
	cluster := enginetest.Cluster(t, 3, enginetest.FastTicks())
	s := open(t, cluster.Endpoints())
	timing := lease.Timing{TTL: 3 * time.Second}
	e := elector(t, node(t, s, "a", timing, "g"), "g")
	term := lead(t, e)
	if _, err := e.Leader(t.Context()); err != nil {
		t.Fatal(err)
	}
	leader := leaderOf(t, cluster)
	var followers []*enginetest.Member
	for _, m := range cluster.Members {
		if m != leader {
			followers = append(followers, m)
			m.Pause()
		}
	}
	stopped := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if l, err := e.Leader(ctx); err == nil {
		t.Errorf("without a quorum Leader answers %+v", l)
	} else if took := time.Since(stopped); took > 4*time.Second || !strings.Contains(err.Error(), "quorum") {
		t.Errorf("without a quorum Leader fails after %v with %v", took, err)
	}
	select {
	case <-term.Context().Done():
		if lasted := time.Since(stopped); lasted > timing.TTL {
			t.Errorf("belief lasted %v without a quorum, longer than the TTL of %v", lasted, timing.TTL)
		} else if !errors.Is(context.Cause(term.Context()), tenure.ErrExpired) {
			t.Errorf("the term ended with %v", context.Cause(term.Context()))
		} else {
			t.Logf("belief ended %v after the quorum", lasted)
		}
	case <-time.After(2 * timing.TTL):
		t.Fatal("the leader still believes after two TTLs without a quorum")
	}
	if l, age := e.Recall(); l.Token != term.Token() || l.State != tenure.Led || age < timing.TTL/2 {
		t.Errorf("without a quorum Recall answers %+v of %v ago", l, age)
	}
	for _, m := range followers {
		m.Resume()
	}
	_ = term.Resign(t.Context()) // its work has stopped
	again := lead(t, e)
	if again.Token() <= term.Token() {
		t.Errorf("token %d after token %d", again.Token(), term.Token())
	}
}

// leaderOf is etcd's own leader.
func leaderOf(t *testing.T, cluster *enginetest.Engine) *enginetest.Member {
	t.Helper()
	endpoint, err := etcd.LeaderOf(t.Context(), cluster.Endpoints())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range cluster.Members {
		if m.Endpoint() == endpoint {
			return m
		}
	}
	t.Fatalf("no member has the endpoint %s", endpoint)
	return nil
}

// Ten thousand groups that fall vacant with one session are led again by one
// process soon after.
func TestTakeover(t *testing.T) {
	groups := 10_000
	if testing.Short() {
		groups = 1_000
	}
	cluster := enginetest.Cluster(t, 3)
	timing := lease.Timing{TTL: 10 * time.Second}
	var nodes [2]*lease.Node
	for i := range nodes {
		nodes[i] = node(t, open(t, cluster.Endpoints()), fmt.Sprintf("n%d", i), timing, "shard-*")
	}
	campaign := func(n *lease.Node) (*sync.WaitGroup, []*tenure.Term) {
		terms := make([]*tenure.Term, groups)
		var all sync.WaitGroup
		for i := range groups {
			all.Go(func() {
				e, err := n.Elector(fmt.Sprintf("shard-%d", i))
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
				defer cancel()
				if terms[i], err = e.Campaign(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		return &all, terms
	}
	first, held := campaign(nodes[0])
	first.Wait()
	second, _ := campaign(nodes[1])
	wait(t, 3*time.Second) // the second one has its watch and its place in line
	var resigned sync.WaitGroup
	for _, term := range held {
		resigned.Go(func() {
			<-term.Context().Done()
			_ = term.Resign(t.Context())
		})
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := nodes[0].Close(ctx); err != nil {
		t.Fatal(err)
	}
	closed := time.Since(start)
	second.Wait()
	t.Logf("%d groups: closed in %v, all led again %v after", groups, closed, time.Since(start)-closed)
	resigned.Wait()
}

// Endpoints that do not answer, wrong ones and wrong names are errors within
// seconds that name them.
func TestBadInput(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  etcd.Config
		says []string
	}{
		"no endpoints":    {etcd.Config{}, []string{"endpoints"}},
		"odd endpoint":    {etcd.Config{Endpoints: []string{"http://a b"}}, []string{"http://a b", "host:port"}},
		"nobody there":    {etcd.Config{Endpoints: []string{"http://127.0.0.1:1"}}, []string{"127.0.0.1:1"}},
		"odd prefix":      {etcd.Config{Endpoints: []string{"http://127.0.0.1:1"}, Prefix: "x"}, []string{"prefix", "x"}},
		"half a password": {etcd.Config{Endpoints: []string{"http://127.0.0.1:1"}, Username: "u"}, []string{"password"}},
		"odd min ttl":     {etcd.Config{Endpoints: []string{"http://127.0.0.1:1"}, MinTTL: time.Millisecond}, []string{"min ttl", "1ms"}},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			s, err := etcd.Open(t.Context(), c.cfg)
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			for _, word := range c.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
			if took := time.Since(start); took > 6*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}
