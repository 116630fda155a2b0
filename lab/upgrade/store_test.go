//go:build linux

package upgrade

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/store/kv"
)

// versionInfo is a program's description of itself.
type versionInfo struct {
	Format int `json:"record_format"`
}

// Each version reads and obeys what the other writes to an engine: sessions, groups, leaders,
// policies, cordons, requests that were made, and forced ends. All have the same format.
func TestRecords(t *testing.T) {
	t.Parallel()
	old, now := versions(t)
	for _, v := range []version{old, now} {
		if is := read[versionInfo](t, v.tenure, "version"); is.Format != kv.Format {
			t.Fatalf("the %s version writes format %d, and this one %d: a version that reads both and writes the older must come first (docs/operations.md, Upgrade)", v.name, is.Format, kv.Format)
		}
	}
	cluster := enginetest.Cluster(t, 1)
	store := "--store=etcd://" + cluster.Members[0].Addr()
	held := map[string]*process{}
	for _, v := range []version{old, now} {
		held[v.name] = start(t, v.tenure, "exec", store, "--id=node-"+v.name, "--ttl="+ttl, "held-"+v.name, "--", "sleep", "1000")
		must(t, now.tenure, "watch", "held-"+v.name, "--until=led", store)
	}
	for _, verb := range [][]string{{"sessions"}, {"groups"}, {"candidates", "held-previous"}, {"candidates", "held-this"}, {"leader", "held-previous", "held-this"}} {
		verb = append(verb, store)
		byOld, byNow := read[[]map[string]any](t, old.tenure, verb...), read[[]map[string]any](t, now.tenure, verb...)
		if len(byOld) == 0 || !reflect.DeepEqual(byOld, byNow) {
			t.Errorf("%v: %v by the previous version, %v by this one", verb, byOld, byNow)
		}
	}
	for _, way := range []struct{ by, to version }{{old, now}, {now, old}} {
		checkObeyed(t, store, way.by, way.to)
	}
	// A candidate whose session was closed by force stops, and both versions know why.
	must(t, now.tenure, "step-down", "held-previous", "--force", "--yes", store)
	must(t, old.tenure, "step-down", "held-this", "--force", "--yes", store)
	for name, p := range held {
		<-p.Exited
		if code := p.Cmd.ProcessState.ExitCode(); code != 75 {
			t.Errorf("%s was forced: exit code %d\n%s", name, code, p.said)
		}
	}
	if terms := read[[]term](t, old.tenure, "history", "held-previous", store); len(terms) != 1 || terms[0].Reason != "forced" {
		t.Errorf("the previous version reads %+v", terms)
	}
	formats(t, cluster.Endpoints())
}

// checkObeyed checks that one version sees and obeys what the other wrote.
func checkObeyed(t *testing.T, store string, by, to version) {
	t.Helper()
	must(t, by.tenure, "policy", "set", "laid-"+by.name, "--min-ttl=4s", "--max-ttl=1m", "--members=a,b", "--fenced=false", store)
	show := map[string]string{"previous": "get", "this": "show"} // the previous version has the former name
	set := read[map[string]any](t, by.tenure, "policy", show[by.name], "laid-"+by.name, store)
	if got := read[map[string]any](t, to.tenure, "policy", show[to.name], "laid-"+by.name, store); !reflect.DeepEqual(got, set) {
		t.Errorf("a policy by %s is %v, and %s reads %v", by.name, set, to.name, got)
	}
	led := filepath.Join(t.TempDir(), "led")
	elected := func(group, id string, flags ...string) int {
		_, code := run(t, to.tenure, append(append([]string{"exec", store, "--id=" + id, "--ttl=" + ttl, "--wait=500ms"}, flags...), group, "--", "touch", led)...)
		return code
	}
	if code := elected("laid-"+by.name, "c"); code != 124 {
		t.Errorf("who is no member by %s ends by %s with %d", by.name, to.name, code)
	}
	must(t, by.tenure, "cordon", "x", "--yes", "--reason=disk", store)
	if code := elected("free", "x"); code != 124 {
		t.Errorf("who is cordoned by %s ends by %s with %d", by.name, to.name, code)
	}
	must(t, to.tenure, "uncordon", "x", store)
	must(t, by.tenure, "exec", store, "--once=schema-"+by.name, "--ttl="+ttl, "migrations", "--", "true")
	if code := elected("migrations", "y", "--once=schema-"+by.name, "--wait=30s"); code != 0 {
		t.Errorf("what is done by %s ends by %s with %d", by.name, to.name, code)
	}
	if found, _ := filepath.Glob(led); found != nil {
		t.Errorf("%s ran what %s had forbidden or done", to.name, by.name)
	}
	if code := elected("free", "x"); code != 0 {
		t.Errorf("who is free again ends by %s with %d", to.name, code)
	}
	var d struct {
		Findings []struct{ Level, Check string }
	}
	text := must(t, to.tenure, "doctor", "--measure=0s", store, "-o", "json")
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Findings {
		if f.Check == "format" && f.Level != "ok" {
			t.Errorf("doctor of %s: %s", to.name, text)
		}
	}
}

// formats checks that every value in the engine has a format that both versions know.
func formats(t *testing.T, endpoints []string) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	all, err := c.Get(t.Context(), "/tenure/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, item := range all.Kvs {
		kind, _, _ := strings.Cut(strings.TrimPrefix(string(item.Key), "/tenure/"), "/")
		if kind == "history" || kind == "rules" {
			continue // terms are read like their record; of rules only the version is read
		}
		kinds[kind]++
		var value struct{ Format int }
		if err := json.Unmarshal(item.Value, &value); err != nil || value.Format != kv.Format {
			t.Errorf("%s: format %d, %v", item.Key, value.Format, err)
		}
	}
	for _, kind := range []string{"meta", "record", "attribute"} {
		if kinds[kind] == 0 {
			t.Errorf("nothing of %s was written: %v", kind, kinds)
		}
	}
}
