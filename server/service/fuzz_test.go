package service

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store/mem"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// fuzzed replaces its service from time to time, so that the state of earlier runs does not
// slow down later ones.
type fuzzed struct {
	svc    *Service
	store  *mem.Store
	served int
}

const fuzzedAfter = 2000

func (z *fuzzed) service(t testing.TB) *Service {
	if z.svc != nil && z.served < fuzzedAfter {
		z.served++
		return z.svc
	}
	z.close()
	z.store = mem.New(mem.Options{Deployment: "here"})
	svc, err := New(context.Background(), Config{Store: z.store, Log: quiet(), MaxWait: 5 * time.Millisecond, TTL: time.Second, MaxTTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	z.svc, z.served = svc, 0
	// Elect leaders, so that renewals and resignations find a term.
	for _, body := range []string{`{"node_id":"a"}`, `{"node_id":"b"}`} {
		w := httptest.NewRecorder()
		svc.ServeHTTP(w, local("POST", "/v1/groups/"+body[12:13]+"/campaign", "", body))
		if w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	return svc
}

func (z *fuzzed) close() {
	if z.svc != nil {
		z.svc.Close()
		z.store.Close()
	}
}

// local makes a request from a loopback address.
func local(method, path, query, body string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body))
	r.Method, r.URL.Path, r.URL.RawQuery = method, path, query
	r.RemoteAddr, r.Host = "127.0.0.1:9", "127.0.0.1"
	return r
}

// No combination of method, path, query, header and body makes any route panic or answer with
// a server error, and every refusal is a problem with a code and a detail.
func FuzzRequest(f *testing.F) {
	z := &fuzzed{}
	f.Cleanup(z.close)
	routes := z.service(f).Routes()
	const handleOfA = "MQBoZXJlAGEAczE" // version, deployment, group a and session s1
	full := `{"node_id":"a","term":1,"handle":"` + handleOfA + `","groups":["a","b"],"ttl_ms":1000}`
	for i, r := range routes {
		n := uint8(i)
		f.Add(n, "a", "", `{}`, "")
		f.Add(n, "a", "wait=1ms", full, `If-Match: "1"`)
		f.Add(n, handleOfA, "wait=1ms&group=a", `{"groups":["a","c"]}`, "Last-Event-ID: x")
		if strings.HasPrefix(r.Path, "/store/") {
			f.Add(n, "", "", `{"session":"s1","seen":[{"group":"c","version":0,"token":0}],"held":{"group":"a","version":1,"token":1},"to":"s2","reason":"resigned"}`, "")
			f.Add(n, "", "", `{"candidate":{"id":"a"},"ttl_ms":1000,"scope":["*"],"group":"a","name":"group/a","values":{"a":"b"},"to":2}`, "")
			f.Add(n, "", "", `{"session":"s1","request":{"id":"r","verb":"step-down","group":"a","ttl_ms":1000},"outcome":"done"}`, "Tenure-Deployment: here")
		}
	}
	f.Add(uint8(0), "..", "wait=-1s&force=true", `{"node_id":"a","ttl_ms":9223372036854775807,"metadata":{"a":"b"}}`, "Authorization: Bearer x")
	f.Add(uint8(1), "%00", "stale=9999h&after=9007199254740993&limit=-1", `{"node_id":"a","extend_by_ms":-9223372036854775808}`, `If-Match: "9007199254740993"`)
	f.Add(uint8(250), "PATCH /v1/groups/a", "access_token=x", "", "Origin: http://elsewhere")
	f.Add(uint8(250), "GET /v1//groups/../groups/a/leader", "", "", "")
	f.Add(uint8(250), "GET /V1/groups/", "%zz", "\x00", "Content-Length: -1")
	f.Fuzz(func(t *testing.T, which uint8, name, query, body, headers string) {
		method, path := "", ""
		if int(which) < len(routes) {
			method = routes[which].Method
			path = "/v1" + strings.NewReplacer("{group}", name, "{handle}", name, "{node}", name).Replace(routes[which].Path)
		} else if method, path, _ = strings.Cut(name, " "); !strings.HasPrefix(path, "/") {
			path = "/" + path
		}
		patience := time.Minute
		if strings.HasSuffix(path, "/watch") || strings.HasSuffix(path, "/overview") {
			patience = 20 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r := local(method, path, query, body).WithContext(ctx)
		for line := range strings.Lines(headers) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			r.Header.Add(key, value)
		}
		// A timeout that the caller sets too short would look like a server error.
		r.Header.Del(wire.TimeoutHeader)
		w := httptest.NewRecorder()
		svc := z.service(t)
		begin := time.Now()
		svc.ServeHTTP(w, r)
		if took := time.Since(begin); took > 30*time.Second {
			t.Errorf("%q %q?%q %q took %v", method, path, query, body, took)
		}
		// A caller that has disconnected gets no answer. Streams end only this way.
		if w.Code < http.StatusBadRequest || ctx.Err() != nil {
			return
		}
		var p struct{ Title, Code, Detail string }
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Title == "" || p.Code == "" || p.Detail == "" || w.Code >= http.StatusInternalServerError {
			t.Errorf("%q %q?%q %q: %d %s", method, path, query, body, w.Code, w.Body)
		}
	})
}
