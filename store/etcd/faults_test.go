package etcd_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/etcd"
	"github.com/tenurehq/tenure/store/storetest"
)

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
		terms = append(terms, storetest.Lead(t, storetest.Elector(t, storetest.Node(t, open(t, mine), fmt.Sprintf("n%d", i), lease.Timing{TTL: 5 * time.Second}, group), group)))
	}
	storetest.Survive(t, terms, 12*time.Second, // more than two TTLs
		// Not resumed: a leader of etcd that goes on after a pause may revoke leases
		// that the others have kept alive (docs/engines.md).
		storetest.Fault{Name: "etcd's leader stopped", Strike: leader.Pause, Heal: func() { leader.Kill(); leader.Restart() }},
		storetest.Fault{Name: "one member black-holed", Strike: proxies[1].Cut, Heal: proxies[1].Heal},
		storetest.Fault{Name: "one member killed", Strike: cluster.Members[2].Kill, Heal: cluster.Members[2].Restart})
}

// A leader whose client is cut off stops believing before the next one begins:
// both beliefs are read on one clock.
func TestNoOverlap(t *testing.T) {
	cluster := enginetest.Cluster(t, 3, enginetest.FastTicks())
	var ways [2]storetest.Way
	for i := range ways {
		var proxies []*enginetest.Proxy
		var endpoints []string
		for _, m := range cluster.Members {
			p := m.Proxy()
			proxies, endpoints = append(proxies, p), append(endpoints, p.Endpoint())
		}
		ways[i] = storetest.Way{Store: open(t, endpoints), Cut: each(proxies, (*enginetest.Proxy).Cut), Heal: each(proxies, (*enginetest.Proxy).Heal)}
	}
	storetest.NoOverlap(t, 2*time.Second, ways, storetest.Rounds(t, 3))
}

func each(proxies []*enginetest.Proxy, do func(*enginetest.Proxy)) func() {
	return func() {
		for _, p := range proxies {
			do(p)
		}
	}
}

// With both followers stopped no beat counts, no grant is made and reads fail
// with an error that says why, while what was known before can be recalled with
// its age; when they are back everything goes on by itself.
func TestQuorumLost(t *testing.T) {
	cluster := enginetest.Cluster(t, 3, enginetest.FastTicks())
	const ttl = 3 * time.Second
	e := storetest.Candidate(t, open(t, cluster.Endpoints()), "a", ttl, "g")
	leader := leaderOf(t, cluster)
	followers := slices.DeleteFunc(slices.Clone(cluster.Members), func(m *enginetest.Member) bool { return m == leader })
	storetest.QuorumLost(t, e, ttl, "quorum", func() {
		for _, m := range followers {
			m.Pause()
		}
	}, func() {
		for _, m := range followers {
			m.Resume()
		}
	})
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
		nodes[i] = storetest.Node(t, open(t, cluster.Endpoints()), fmt.Sprintf("n%d", i), timing, "shard-*")
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
	storetest.Wait(t, 3*time.Second) // the second one has its watch and its place in line
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
