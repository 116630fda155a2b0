package node

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/store/mem"
)

// Every call of a session's life is counted once under its own name, in the metrics and
// in the trace, and is made.
func TestCounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := &Node{cfg: Config{ID: "node-1", Group: "billing", Log: slog.New(slog.DiscardHandler)}, host: clock.System(), pauses: &pauseMeter{clock: clock.System()}}
	n.metrics = newMetrics(n)
	var err error
	if n.trace, err = openTrace(dir, "node-1", n.cfg.Log); err != nil {
		t.Fatal(err)
	}
	defer n.trace.close()
	store := mem.New(mem.Options{})
	defer store.Shutdown()
	c := counted{store, n}
	ctx, scope := t.Context(), lease.Scope{"billing"}
	session, err := c.Open(ctx, tenure.Candidate{ID: "node-1"}, time.Minute, lease.OpenOptions{Scope: scope})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.KeepAlive(ctx, session.ID)
	view, rerr := c.Read(ctx, "billing")
	held, aerr := c.Acquire(ctx, session.ID, lease.Record{Group: "billing", Version: view.Version})
	line, serr := c.Sessions(ctx, scope, lease.Page{})
	for _, err := range []error{err, rerr, aerr, serr} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for range c.Watch(ctx, scope) {
		break
	}
	if _, err := c.Release(ctx, session.ID, "", lease.Resigned, held[0]); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(ctx, session.ID, lease.Closed); err != nil || len(line) != 1 || held[0].Token == 0 {
		t.Fatalf("the calls were not made: %v, %v, %v", err, line, held)
	}

	w := httptest.NewRecorder()
	n.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	trace, err := os.ReadFile(filepath.Join(dir, "node-1.trace"))
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{api.CallOpen, api.CallKeepAlive, api.CallRead, api.CallAcquire, api.CallLine, api.CallWatch, api.CallRelease, api.CallClose} {
		if want := `tenure_engine_calls_total{call="` + what + `",group="billing"} 1`; !strings.Contains(w.Body.String(), want) {
			t.Errorf("the metrics do not say %s", want)
		}
		if strings.Count(string(trace), `"what":"`+what+`"`) != 1 {
			t.Errorf("the trace does not say %s once:\n%s", what, trace)
		}
	}
}

// A node of a lab keeps its collector busy for as long as it is asked to, and one that
// is no lab's has no such hook; what makes no sense is refused.
func TestGarbage(t *testing.T) {
	// Not parallel: it sets how the collector of this process works.
	call := func(lab bool, body string) *httptest.ResponseRecorder {
		n := &Node{cfg: Config{ID: "node-1", Group: "billing", Lab: lab, Log: slog.New(slog.DiscardHandler)}, host: clock.System()}
		n.metrics = newMetrics(n)
		r := httptest.NewRequest(http.MethodPost, "/lab/garbage", strings.NewReader(body))
		r.RemoteAddr = "127.0.0.1:1"
		w := httptest.NewRecorder()
		n.handler().ServeHTTP(w, r)
		return w
	}
	var got api.Collected
	for range 10 { // a busy machine may not let it run
		w := call(true, `{"heap_mb":16,"for_ms":300}`)
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%d, %v", w.Code, err)
		}
		if got.Cycles > 1 {
			break
		}
	}
	if got.Cycles < 2 {
		t.Errorf("%+v: the collector did not run", got)
	}
	for _, body := range []string{`{"heap_mb":0,"for_ms":300}`, `{"heap_mb":4096,"for_ms":300}`, `{"heap_mb":4,"for_ms":0}`, `{"heap_mb":4,"for_ms":3600000}`} {
		if w := call(true, body); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", body, w.Code)
		}
	}
	if w := call(false, `{"heap_mb":4,"for_ms":300}`); w.Code != http.StatusNotFound {
		t.Errorf("a node that is no lab's answers %d", w.Code)
	}
}
