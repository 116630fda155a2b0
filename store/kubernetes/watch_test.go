package kubernetes_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tenurehq/tenure/store/kubernetes"
)

// A watch goes on from the version that the last bookmark told, and from a new listing, with a
// gap, when the API server no longer knows what happened since.
func TestWatchExpired(t *testing.T) {
	var mu sync.Mutex // of what the server counts
	lists := 0
	var asked []string
	lease := func(kind, version, name string) string {
		return fmt.Sprintf(`{"type":%q,"object":{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q,"resourceVersion":%q}}}`, kind, name, version)
	}
	const gone = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		q := r.URL.Query()
		mu.Lock()
		if q.Get("watch") == "" {
			defer mu.Unlock()
			lists++
			_, _ = fmt.Fprintf(w, `{"kind":"LeaseList","apiVersion":"coordination.k8s.io/v1","metadata":{"resourceVersion":"%d00"},"items":[]}`, lists)
			return
		}
		asked = append(asked, q.Get("resourceVersion"))
		n := len(asked)
		mu.Unlock()
		switch n {
		case 1:
			_, _ = fmt.Fprintln(w, lease("ADDED", "101", "tenure.record.a"))
			_, _ = fmt.Fprintln(w, lease("BOOKMARK", "150", ""))
		case 2: // the answer itself says so
			w.WriteHeader(http.StatusGone)
			_, _ = fmt.Fprintln(w, gone)
		case 3: // an event says so
			_, _ = fmt.Fprintf(w, `{"type":"ERROR","object":%s}`, gone)
		default:
			_, _ = fmt.Fprintln(w, lease("DELETED", "301", "tenure.record.b"))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}))
	defer server.Close()
	d, closes, err := kubernetes.NewDriver(kubernetes.Config{Namespace: "default", REST: &rest.Config{Host: server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer closes()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var seen []string
	for change, err := range d.Watch(ctx, time.Hour, "record/") {
		if err != nil {
			t.Fatal(err)
		}
		if seen = append(seen, change.Key); change.Key == "record/b" {
			break
		}
	}
	if got, want := fmt.Sprintf("%q", seen), `["" "record/a" "" "" "record/b"]`; got != want {
		t.Errorf("seen %s, want %s", got, want)
	}
	mu.Lock()
	defer mu.Unlock()
	if got, want := fmt.Sprint(asked), "[100 150 200 300]"; got != want {
		t.Errorf("asked from the versions %s, want %s", got, want)
	}
}
