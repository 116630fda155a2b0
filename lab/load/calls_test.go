package load_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/load"
)

// Every call is in the history: answered, refused, or of unknown outcome.
func TestCalls(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			_, _ = fmt.Fprintln(w, `{"node_id":"one","role":"leader","fence_token":1,"working":true}`)
			return
		}
		switch i := n.Add(1); i % 3 {
		case 0:
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprintln(w, `{"code":"request","detail":"no"}`)
		case 1:
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, `{"code":"outcome_unknown","detail":"who knows"}`)
		default:
			_, _ = fmt.Fprintf(w, `{"token":1,"seq":%d}`+"\n", i)
		}
	}))
	defer srv.Close()
	dir := filepath.Join(t.TempDir(), "history")
	w, err := history.Create(dir, "calls")
	if err != nil {
		t.Fatal(err)
	}
	r, err := load.Run(t.Context(), load.Config{URLs: []string{srv.URL}, Connections: 1, Count: 30, For: 20 * time.Second, Calls: w, Name: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := check.Dir(t.Context(), dir, check.Options{Checks: []string{"sequence"}})
	if err != nil {
		t.Fatal(err)
	}
	v, _ := report.Verdict("sequence")
	for what, want := range map[string]int64{"calls answered": r.Calls, "calls failed": r.Refused + r.GaveUp, "calls of unknown outcome": r.Unknown} {
		if v.Count(what) != want || want == 0 {
			t.Errorf("%s: %d in the history, %d were counted", what, v.Count(what), want)
		}
	}
}
