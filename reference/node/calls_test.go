package node

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/node/enginecalls"
	"github.com/tenurehq/tenure/reference/node/nodemetrics"
	"github.com/tenurehq/tenure/reference/node/pause"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// eventHooks record the events.
type eventHooks struct {
	Hooks
	events []Event
}

func (h *eventHooks) Observe(e Event)                        { h.events = append(h.events, e) }
func (h *eventHooks) Handler(next http.Handler) http.Handler { return next }

// Every kind of call in the life of a session is made, and counted once under its name: in
// the metrics and in the events of the hooks.
func TestCounted(t *testing.T) {
	t.Parallel()
	hooks := &eventHooks{}
	n := &Node{Config: Config{ID: "node-1", Group: "billing", Hooks: hooks, Log: slog.New(slog.DiscardHandler)}, host: clock.System(), pauses: &pause.Meter{Clock: clock.System()}}
	n.metrics = nodemetrics.New(n.Config.Group, n, n.Config.ttl(), n.pauses)
	st := mem.New(mem.Options{})
	defer st.Close()
	c := enginecalls.Count(st, n.called)
	ctx, scope := t.Context(), store.Scope{"billing"}
	session, err := c.Open(ctx, tenure.Candidate{ID: "node-1"}, time.Minute, store.OpenOptions{Scope: scope})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.KeepAlive(ctx, session.ID)
	view, rerr := c.Read(ctx, "billing")
	held, aerr := c.Acquire(ctx, session.ID, store.Record{Group: "billing", Version: view.Version})
	line, serr := c.Sessions(ctx, scope, store.Page{})
	for _, err := range []error{err, rerr, aerr, serr} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for range c.Watch(ctx, scope) {
		break
	}
	if _, err := c.Release(ctx, session.ID, "", store.Resigned, held[0]); err != nil {
		t.Fatal(err)
	}
	if err := c.End(ctx, session.ID, store.Closed); err != nil || len(line) != 1 || held[0].Token == 0 {
		t.Fatalf("the calls were not made: %v, %v, %v", err, line, held)
	}

	w := httptest.NewRecorder()
	promhttp.HandlerFor(n.metrics.Registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	for _, what := range []string{api.CallOpen, api.CallKeepAlive, api.CallRead, api.CallAcquire, api.CallLine, api.CallWatch, api.CallRelease, api.CallClose} {
		if want := `tenure_engine_calls_total{call="` + what + `",group="billing"} 1`; !strings.Contains(w.Body.String(), want) {
			t.Errorf("the metrics do not say %s", want)
		}
		if calls := slices.DeleteFunc(slices.Clone(hooks.events), func(e Event) bool { return e.Kind != api.TraceCall || e.What != what }); len(calls) != 1 {
			t.Errorf("the hooks observed %s %d times: %+v", what, len(calls), hooks.events)
		}
	}
}
