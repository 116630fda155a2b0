package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// badService elects every candidate, and answers renewals with renew.
func badService(t *testing.T, ttl time.Duration, renew http.HandlerFunc) (url string, elected func() time.Time) {
	t.Helper()
	var mu sync.Mutex
	var at time.Time
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/groups/{group}/campaign", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		at = time.Now()
		mu.Unlock()
		_, _ = fmt.Fprintf(w, `{"group":"g","leader_node_id":"n","term":1,"ttl_ms":%d,"held_ms":0,"handle":"h","metadata":{},"deployment":"d","fenced":true}`, ttl.Milliseconds())
	})
	mux.HandleFunc("POST /v1/groups/{group}/renew", renew)
	mux.HandleFunc("POST /v1/groups/{group}/resign", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL, func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return at
	}
}

// The curl client stops its command and its descendants before the TTL is over, also if less
// than the pause between renewals is left.
func TestClientInCurlStopsInTime(t *testing.T) {
	const ttl = 8 * time.Second
	url, elected := badService(t, ttl, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	s := startScript(t, []string{"TENURE_STORE=" + url}, "lead.sh", "g", "n", "sh", "-c", `while :; do echo "works $TENURE_FENCING_TOKEN"; sleep 0.05; done & wait`)
	if code := s.exits(); code != 75 { // returns when no process has its output open
		t.Errorf("exit code %d", code)
	}
	if last, ok := s.last("works 1"); !ok || last.at.Sub(elected()) >= ttl || last.at.Sub(elected()) < ttl/2 {
		t.Errorf("it worked for %v, of a TTL of %v", last.at.Sub(elected()), ttl)
	}
}

// The curl client stops its command when it gets a signal, also if the signal goes to its
// whole process group, as from a terminal, and whatever it is doing.
func TestClientInCurlEndsWithItsCommand(t *testing.T) {
	url, _ := badService(t, 8*time.Second, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"group":"g","leader_node_id":"n","term":1,"ttl_ms":8000}`)
	})
	for i := range 12 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			s := startScript(t, []string{"TENURE_STORE=" + url}, "lead.sh", "g", "n", "sh", "-c", fmt.Sprintf(`sleep 0.%03d; kill -s TERM -- -$PPID; echo works; exec sleep 1000`, 3*i))
			if code := s.exits(); code == 0 { // returns when no process has its output open
				t.Errorf("exit code %d", code)
			}
		})
	}
}
