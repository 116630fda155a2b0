//go:build linux

package upgrade

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/server/service"
)

// member runs a command while it leads, with the client of one version and the service of one.
type member struct {
	id     string
	tenure string
	store  string
	*process
}

// term is a term as both versions must print it.
type term struct {
	Term   uint64 `json:"term"`
	NodeID string `json:"leader_node_id"`
	Reason string `json:"reason"`
}

// UnmarshalJSON also reads node_id, which the previous version writes for leader_node_id.
func (t *term) UnmarshalJSON(b []byte) error {
	type plain term
	var former struct {
		NodeID string `json:"node_id"`
	}
	if err := errors.Join(json.Unmarshal(b, (*plain)(t)), json.Unmarshal(b, &former)); err != nil {
		return err
	}
	t.NodeID = cmp.Or(t.NodeID, former.NodeID)
	return nil
}

// groupMembers has the members of one group, and the file that each writes to when it leads.
type groupMembers struct {
	t    *testing.T
	book string
}

// join starts a member, which campaigns.
func (c *groupMembers) join(m *member) {
	c.t.Helper()
	m.process = start(c.t, m.tenure, "exec", "--store="+m.store, "--id="+m.id, "--ttl="+ttl, "--restart=on-lost", "billing", "--",
		"sh", "-c", `echo "$TENURE_NODE $TENURE_FENCING_TOKEN" >> "$0"; exec sleep 1000`, c.book)
	until(c.t, m.id+" campaigns", func() bool {
		return strings.Contains(must(c.t, m.tenure, "candidates", "billing", "-o", "name", "--store="+m.store), m.id+"\n")
	})
}

// led returns the members that have led, in order; their tokens must rise.
func (c *groupMembers) led() []string {
	c.t.Helper()
	text, _ := os.ReadFile(c.book)
	var ids []string
	var last uint64
	for line := range strings.Lines(string(text)) {
		var id string
		var token uint64
		if _, err := fmt.Sscan(line, &id, &token); err != nil || token <= last {
			c.t.Fatalf("token %d after %d\n%s", token, last, text)
		}
		ids, last = append(ids, id), token
	}
	return ids
}

// leads waits until a member leads as the nth.
func (c *groupMembers) leads(m *member, n int) {
	c.t.Helper()
	until(c.t, fmt.Sprintf("%s leads as number %d", m.id, n), func() bool { return len(c.led()) >= n })
	if ids := c.led(); len(ids) != n || ids[n-1] != m.id {
		c.t.Fatalf("%s was to lead as number %d: %v", m.id, n, ids)
	}
}

// Services of both versions share one engine. Commands of both versions, through either
// service, form one group: operators of both versions transfer it, when a leader of one
// version is killed the other leads, tokens rise, and all read the same history.
func TestServices(t *testing.T) {
	t.Parallel()
	old, now := versions(t)
	engine := "--store=etcd://" + enginetest.Cluster(t, 1).Members[0].Addr()
	services := []*process{
		serve(t, old.tenure, "serve", "--listen=127.0.0.1:0", engine),
		serve(t, now.tenure, "serve", "--listen=127.0.0.1:0", engine),
	}
	c := &groupMembers{t: t, book: filepath.Join(t.TempDir(), "book")}
	a := &member{id: "previous-through-this", tenure: old.tenure, store: services[1].URL}
	b := &member{id: "this-through-previous", tenure: now.tenure, store: services[0].URL}
	d := &member{id: "this-through-this", tenure: now.tenure, store: services[1].URL}
	c.join(a)
	c.leads(a, 1)
	c.join(b)
	c.join(d)
	n := 1
	for i, to := range []*member{b, d, a, d, b, a} {
		n++
		by, through := []version{old, now}[i%2], services[i/2%2]
		must(t, by.tenure, "transfer", "billing", to.id, "--yes", "--wait=60s", "--store="+through.URL)
		c.leads(to, n)
	}
	d.end(t)
	for _, kill := range []struct{ leader, next *member }{{a, b}, {b, a}} {
		n++
		kill.leader.Kill()
		c.leads(kill.next, n)
		c.join(kill.leader)
	}
	var told []term
	for _, v := range []version{old, now} {
		for _, store := range []string{engine, "--store=" + services[0].URL, "--store=" + services[1].URL} {
			terms := read[[]term](t, v.tenure, "history", "billing", "--limit=100", store)
			if told == nil {
				told = terms
			}
			if !reflect.DeepEqual(terms, told) {
				t.Errorf("the history by %s %s is %+v, and was %+v", v.name, store, terms, told)
			}
		}
	}
	ids := c.led()
	if len(told) != len(ids) {
		t.Errorf("%d terms, and %d in the history: %+v", len(ids), len(told), told)
	}
	for i, term := range told {
		reason := "transferred"
		switch i {
		case 0:
			reason = ""
		case 1, 2:
			if reason = "expired"; term.Reason == "died" { // its keeper was faster
				reason = term.Reason
			}
		}
		if i < len(ids) && (term.NodeID != ids[len(ids)-1-i] || term.Reason != reason) {
			t.Errorf("%+v, and led have %v", term, ids)
		}
	}
}

// A lease that was won at a service of one version can be renewed, read and released at one of
// the other version, and the next token is larger.
func TestCampaigns(t *testing.T) {
	t.Parallel()
	old, now := versions(t)
	engine := "--store=etcd://" + enginetest.Cluster(t, 1).Members[0].Addr()
	services := []*process{
		serve(t, old.tenure, "serve", "--listen=127.0.0.1:0", engine),
		serve(t, now.tenure, "serve", "--listen=127.0.0.1:0", engine),
	}
	for round := range 4 {
		here, there := services[round%2].URL+"/v1/groups/api", services[1-round%2].URL+"/v1/groups/api"
		node := fmt.Sprint("node-", round)
		won := call[service.Leading](t, http.StatusOK, http.MethodPost, here+"/campaign", service.CampaignRequest{NodeID: node, TTLMS: 30_000})
		if int(won.Term) != round+1 || won.LeaderNodeID != node {
			t.Errorf("round %d: %+v", round, won)
		}
		for _, url := range []string{here, there} {
			if l := call[service.Leader](t, http.StatusOK, http.MethodGet, url+"/leader", nil); l.LeaderNodeID != node || l.Term != won.Term {
				t.Errorf("GET %s/leader: %+v", url, l)
			}
			if code, _ := try(t.Context(), http.MethodPost, url+"/campaign", service.CampaignRequest{NodeID: "other", TTLMS: 30_000}, &struct{}{}); code != http.StatusConflict {
				t.Errorf("another campaign at %s: %d", url, code)
			}
			call[service.Renewed](t, http.StatusOK, http.MethodPost, url+"/renew", service.RenewRequest{NodeID: node, Term: won.Term, Handle: won.Handle})
		}
		call[service.Resigned](t, http.StatusOK, http.MethodPost, there+"/resign", service.ResignRequest{NodeID: node, Term: won.Term, Handle: won.Handle})
	}
	type history struct{ Terms []term }
	var told [2]history
	for i, s := range services {
		told[i] = call[history](t, http.StatusOK, http.MethodGet, s.URL+"/v1/groups/api/history", nil)
	}
	if len(told[0].Terms) != 4 || told[0].Terms[0].NodeID != "node-3" || !reflect.DeepEqual(told[0], told[1]) {
		t.Errorf("the histories differ: %+v and %+v", told[0], told[1])
	}
}
