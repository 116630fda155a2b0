package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// While the service is down, an exec that waits prints at most five lines. When the service
// is back, it is elected within two seconds, also if it was started during the outage.
// TENURE_OUTAGE sets the length of the outage; only then, on an idle machine, are the two
// seconds checked.
func TestExecOutage(t *testing.T) {
	outage, strict := 2*time.Second, false
	if s := os.Getenv("TENURE_OUTAGE"); s != "" {
		var err error
		if outage, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
		strict = true
	}
	e := newExecRig(t)
	service := startServe(t, "--store="+etcdURL(e.engine.Members[0].Addr()))
	blocker, err := e.store.Open(t.Context(), tenure.Candidate{ID: "blocker"}, 5*time.Minute, store.OpenOptions{Scope: store.Scope{"outage-*"}})
	if err != nil {
		t.Fatal(err)
	}
	start := func(n int) *wrapped {
		group := fmt.Sprintf("outage-%d", n)
		if _, err := e.store.Acquire(t.Context(), blocker.ID, store.Record{Group: group}); err != nil {
			t.Fatal(err)
		}
		return execute(t, service.ready.URL, group, []string{"--ttl=8s"}, "sh", "-c", `touch $DIR/led; exec sleep 1000`)
	}
	printed := func(w *wrapped, text string) {
		t.Helper()
		until(t, w.group+" prints "+text, func() bool { return strings.Contains(w.stderr.String(), text) })
	}
	var all []*wrapped
	for n := range 5 {
		all = append(all, start(n))
	}
	for _, w := range all {
		printed(w, "is led by blocker")
	}
	service.kill()
	down := time.Now()
	all = append(all, start(5))
	for _, w := range all {
		printed(w, "cannot reach the store")
	}
	time.Sleep(outage - time.Since(down))
	if err := e.store.End(t.Context(), blocker.ID, store.Closed); err != nil {
		t.Fatal(err)
	}
	service.launch(strings.TrimPrefix(service.ready.URL, "http://"))
	back := time.Now()
	for _, w := range all {
		until(t, w.group+" leads", func() bool { _, err := os.Stat(filepath.Join(w.dir, "led")); return err == nil })
	}
	took := time.Since(back)
	most := 0
	for _, w := range all {
		text := w.stderr.String()
		lines := strings.Count(text, "\n")
		if most = max(most, lines); lines > 5 || strings.Contains(text, "remote:") {
			t.Errorf("%s printed %d lines:\n%s", w.group, lines, text)
		}
	}
	t.Logf("service down for %v: all elected %v after its return; at most %d lines", outage, took.Round(time.Millisecond), most)
	if strict && took > 2*time.Second {
		t.Errorf("elected %v after the return", took)
	}
}
