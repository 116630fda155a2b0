package labnode

import (
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/node"
	"github.com/tenurehq/tenure/server/httpapi"
)

// The routes under /lab and the lab's part of the status are served to callers on this
// machine. Other routes are the node's, and callers from elsewhere are refused.
func TestHandler(t *testing.T) {
	h, err := New(Config{ID: "node-1", ClockSkew: -time.Hour, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	h.Observe(node.Event{Kind: api.TraceAttempt, At: 5, Token: 7})
	h.Observe(node.Event{Kind: api.TraceDone, At: 5, Token: 7})
	handler := h.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/status" && r.URL.Path != "/v1/status" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		httpapi.WriteJSON(w, http.StatusOK, api.Status{NodeID: "node-1", FenceToken: 7})
	}))
	call := func(method, path, from string, into any) int {
		t.Helper()
		r := httptest.NewRequest(method, path, http.NoBody)
		r.RemoteAddr = from + ":1"
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if into != nil {
			if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
				t.Errorf("%s %s: %v", method, path, err)
			}
		}
		return w.Code
	}
	for _, prefix := range []string{"", "/v1"} {
		var attempts labapi.Attempts
		if code := call(http.MethodGet, prefix+"/lab/attempts", "127.0.0.1", &attempts); code != http.StatusOK || attempts.NodeID != "node-1" || len(attempts.Items) != 1 || attempts.Items[0] != (labapi.Attempt{At: 5, Token: 7}) {
			t.Errorf("attempts: %d, %+v", code, attempts)
		}
		var s labapi.Status
		if code := call(http.MethodGet, prefix+"/status", "127.0.0.1", &s); code != http.StatusOK || s.NodeID != "node-1" || s.FenceToken != 7 || !s.Lab {
			t.Errorf("status: %d, %+v", code, s)
		}
		if off := time.Until(time.UnixMilli(s.WallMS)); (off + time.Hour).Abs() > time.Minute {
			t.Errorf("the wall clock is off by %v", off)
		}
		if code := call(http.MethodGet, prefix+"/lab/attempts", "192.0.2.1", nil); code != http.StatusForbidden {
			t.Errorf("from another machine: %d", code)
		}
	}
	if code := call(http.MethodGet, "/leader", "192.0.2.1", nil); code != http.StatusTeapot {
		t.Errorf("a route of the node: %d", code)
	}
}

// Flags that cannot work are refused.
func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		backend string
		args    []string
		ok      bool
	}{
		{"etcd", []string{"--clock-skew=1s", "--clock-drift=500ppm", "--stop-delay=1s"}, true},
		{"raft", []string{"--raft-lease=1s", "--peer-proxies=a=h:1,b=h:2"}, true},
		{"etcd", []string{"--raft-lease=1s"}, false},
		{"etcd", []string{"--clock-drift=fast"}, false},
		{"etcd", []string{"--clock-drift=-1"}, false},
		{"etcd", []string{"--clock-drift=NaN"}, false},
		{"etcd", []string{"--stop-delay=-1s"}, false},
		{"raft", []string{"--peer-proxies=a"}, false},
	} {
		f := pflag.NewFlagSet("node", pflag.ContinueOnError)
		f.SetOutput(io.Discard)
		cfg := node.Config{ID: "n1", Store: tt.backend}
		complete := Flags(f, &cfg)
		err := f.Parse(tt.args)
		if err == nil {
			var end func()
			if end, err = complete(); err == nil {
				end()
			}
		}
		if (err == nil) != tt.ok || (cfg.Hooks != nil) != tt.ok {
			t.Errorf("%s %q: %v", tt.backend, tt.args, err)
		}
	}
	if (Config{Plant: []plant.Bug{plant.WallClock}}).Validate(node.StoreRaft) == nil || (Config{ClockDrift: math.Inf(1)}).Validate("etcd://127.0.0.1:1") == nil {
		t.Error("a bug in the lease of Raft, or an infinite drift, is accepted")
	}
}

// Raft reaches its peers through their proxies, and has the lease that was asked for.
func TestRaft(t *testing.T) {
	h := &Hooks{cfg: Config{RaftLease: time.Second, PeerProxies: map[string]string{"b": "127.0.0.1:1"}}}
	cfg := h.Raft(raft.Config{Peers: map[string]string{"a": "192.0.2.1:1", "b": "192.0.2.2:2"}})
	if cfg.Timing.LeaderLease != time.Second {
		t.Errorf("the lease is %v", cfg.Timing.LeaderLease)
	}
	if conn, err := cfg.Dial(t.Context(), "tcp", "192.0.2.2:2"); err == nil || conn != nil {
		t.Error("nothing listens at the proxy, and the call succeeds")
	} else if !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("%v: not through the proxy", err)
	}
}
