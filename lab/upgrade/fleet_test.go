//go:build linux

package upgrade

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/reference/api"
)

// Nodes of both versions form one fleet with one ledger. When a leader of one version is killed
// the other version leads, both ways, and the callers' numbers and tokens always rise. Then
// this version's ledger replaces the old one, on the same data, and all continue.
func TestFleet(t *testing.T) {
	t.Parallel()
	old, now := versions(t)
	cluster := enginetest.Cluster(t, 1)
	ports, err := child.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	db := filepath.Join(t.TempDir(), "ledger.db")
	keeps := serve(t, old.fleet, "ledger", "--listen", ports[0], "--db", db)
	node := func(v version) *process {
		engine := []string{"--store", "etcd://" + strings.ReplaceAll(strings.Join(cluster.Endpoints(), ","), "http://", "")}
		if v.name == old.name {
			engine = []string{"--backend", "etcd", "--endpoints", strings.Join(cluster.Endpoints(), ",")}
		}
		return serve(t, v.node[0], slices.Concat(v.node[1:], engine, []string{"--id", "node-" + v.name, "--group", "billing", "--ledger", keeps.URL, "--lease-ttl", ttl})...)
	}
	var last api.Next
	// next waits until the node leads and hands out numbers.
	next := func(p *process) {
		t.Helper()
		var got api.Next
		until(t, "it leads and works", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			var s api.Status
			if _, err := try(ctx, http.MethodGet, p.URL+"/status", nil, &s); err != nil || s.Role != api.Leader || !s.Working {
				return false
			}
			code, err := try(ctx, http.MethodPost, p.URL+"/next", nil, &got)
			return code == http.StatusOK && err == nil
		})
		if got.Seq <= last.Seq || got.Token < last.Token {
			t.Errorf("%+v after %+v", got, last)
		}
		last = got
	}
	nodes := map[string]*process{old.name: node(old)}
	next(nodes[old.name])
	nodes[now.name] = node(now)
	for _, kill := range []struct{ leader, next version }{{old, now}, {now, old}} {
		was := last.Token
		nodes[kill.leader.name].Kill()
		next(nodes[kill.next.name])
		if last.Token <= was {
			t.Errorf("%s follows %s with token %d after %d", kill.next.name, kill.leader.name, last.Token, was)
		}
		nodes[kill.leader.name] = node(kill.leader)
	}
	keeps.end(t)
	serve(t, now.fleet, "ledger", "--listen", ports[0], "--db", db)
	until(t, "somebody leads again", func() bool {
		for _, p := range nodes {
			var s api.Status
			if _, err := try(t.Context(), http.MethodGet, p.URL+"/status", nil, &s); err == nil && s.Role == api.Leader && s.Working {
				next(p)
				return true
			}
		}
		return false
	})
}
