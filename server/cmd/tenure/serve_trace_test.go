package main

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/tenurehq/tenure/server/service"
)

// spanSeen is a span as the collector got it.
type spanSeen struct {
	name, trace, parent string
	attributes          map[string]string
}

// receiver is a collector: OTLP over HTTP.
type receiver struct {
	mu    sync.Mutex
	spans []spanSeen
}

func (c *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var in collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range in.GetResourceSpans() {
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				seen := spanSeen{s.GetName(), hex.EncodeToString(s.GetTraceId()), hex.EncodeToString(s.GetParentSpanId()), make(map[string]string)}
				for _, a := range s.GetAttributes() {
					seen.attributes[a.GetKey()] = a.GetValue().String()
				}
				c.spans = append(c.spans, seen)
			}
		}
	}
}

func (c *receiver) find(name string) (spanSeen, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.name == name {
			return s, true
		}
	}
	return spanSeen{}, false
}

// With an endpoint each request becomes a span below its caller's, with group, status and the
// code of a refusal.
func TestServeTraces(t *testing.T) {
	c := &receiver{}
	at := httptest.NewServer(c)
	defer at.Close()
	p := startServe(t, "--data-dir", filepath.Join(t.TempDir(), "data"), "--otlp-endpoint", at.URL)
	const traceID, spanID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	var l service.Leading
	parent := http.Header{"Traceparent": {"00-" + traceID + "-" + spanID + "-01"}}
	if status := askAs(t, p, "", "POST", "/v1/groups/billing/campaign", parent, service.CampaignRequest{NodeID: "a"}, &l); status != 200 {
		t.Fatalf("campaign: %d", status)
	}
	var problem map[string]any
	askAs(t, p, "", "POST", "/v1/groups/billing/campaign", nil, service.CampaignRequest{NodeID: "b"}, &problem)
	const name = "POST /groups/{group}/campaign"
	within(t, "the span is sent", func() bool { _, ok := c.find(name); return ok })
	s, _ := c.find(name)
	if s.trace != traceID || s.parent != spanID || s.attributes["tenure.group"] != `string_value:"billing"` || s.attributes["http.response.status_code"] != "int_value:200" {
		t.Errorf("%+v", s)
	}
	within(t, "the refusal is sent", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range c.spans {
			if s.attributes["tenure.code"] == `string_value:"not_leader"` && s.trace != traceID {
				return true
			}
		}
		return false
	})
}
