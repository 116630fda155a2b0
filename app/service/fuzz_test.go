package service

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Whatever path, query, header and body are sent to whichever route, nothing panics and
// nothing is the service's own fault.
func FuzzRequest(f *testing.F) {
	for i := range 45 {
		f.Add(uint8(i), "billing", "", `{}`, "")
		f.Add(uint8(i), "billing", "wait=1ms", `{"node_id":"a","term":1,"handle":"MQBoZXJlAGJpbGxpbmcAczE","groups":["billing"],"ttl_ms":1000}`, `"1"`)
	}
	f.Add(uint8(0), "..", "wait=-1s&force=true", `{"node_id":"a","ttl_ms":9223372036854775807,"metadata":{"a":"b"}}`, "x")
	f.Add(uint8(1), "%00", "stale=9999h&after=9007199254740993&limit=-1", `{"node_id":"a","extend_by_ms":-9223372036854775808}`, `"9007199254740993"`)
	store := memStore(f)
	svc, err := New(f.Context(), Config{Store: store, Log: quiet(), MaxWait: 5 * time.Millisecond, TTL: time.Second})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(svc.Close)
	routes := svc.Routes()
	f.Fuzz(func(t *testing.T, which uint8, name, query, body, condition string) {
		route := routes[int(which)%len(routes)]
		patience := time.Minute
		if strings.HasSuffix(route.Path, "/watch") {
			patience = 20 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r := httptest.NewRequest(route.Method, "/", strings.NewReader(body)).WithContext(ctx)
		r.URL.Path = "/v1" + strings.NewReplacer("{group}", name, "{handle}", name, "{node}", name).Replace(route.Path)
		r.URL.RawQuery = query
		r.RemoteAddr, r.Host = "127.0.0.1:9", "127.0.0.1"
		for _, h := range []string{"If-Match", "If-None-Match", "Last-Event-ID"} {
			r.Header.Set(h, condition)
		}
		w := httptest.NewRecorder()
		svc.ServeHTTP(w, r)
		// A caller that has gone away, as that of a stream must, is owed no answer.
		if w.Code >= http.StatusInternalServerError && ctx.Err() == nil {
			t.Errorf("%s %s?%s %q: %d %s", route.Method, r.URL.Path, query, body, w.Code, w.Body)
		}
	})
}
