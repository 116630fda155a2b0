package service

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// An HTTP/2 stream that is idle for longer than the write timeout stays open and sends the
// next event.
func TestIdleStreamOverHTTP2(t *testing.T) {
	const write = 200 * time.Millisecond
	in := serve(t, memStore(t), func(c *Config) { c.WriteTimeout, c.Heartbeat = write, time.Minute })
	srv := httptest.NewUnstartedServer(in.svc)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	t.Cleanup(in.svc.Drain) // ends its streams before the server waits for them
	over := *in
	over.url, over.http = srv.URL, srv.Client()
	if resp, err := over.http.Get(srv.URL + "/healthz"); err != nil || resp.ProtoMajor != 2 || resp.Body.Close() != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", resp, err)
	}
	w := over.listen("/v1/groups/billing/watch", "")
	w.expect("billing", "vacant", 0)
	select {
	case e, ok := <-w.events:
		t.Fatalf("heard %+v (%v) of a group that nobody touches", e, ok)
	case <-time.After(5 * write):
	}
	lead(in, "billing", "a")
	w.expect("billing", "led", 1)
}
