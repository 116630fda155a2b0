package nodehttp

import (
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/reference/node"
)

// Callers on this machine that are neither proxies nor web pages, and callers with the
// credential, may ask a leader to resign.
func TestOperator(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("correct horse battery\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inner, err := node.New(node.Config{
		ID: "n1", Group: "billing", Listen: "127.0.0.1:0", Store: node.StoreMem, Ledger: "http://127.0.0.1:1", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &handler{Node: inner}
	if n.secret, err = readSecret(file); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		from    string
		headers []string
		secret  bool
		want    bool
	}{
		{"127.0.0.1:5", nil, true, true},
		{"[::1]:5", nil, true, true},
		{"192.0.2.1:5", nil, true, false},
		{"192.0.2.1:5", []string{"Authorization", "Bearer correct horse battery"}, true, true},
		{"192.0.2.1:5", []string{"Authorization", "Bearer correct horse"}, true, false},
		{"192.0.2.1:5", []string{"Authorization", "Bearer "}, false, false},
		{"192.0.2.1:5", []string{"Authorization", "correct horse battery"}, true, false},
		{"127.0.0.1:5", []string{"X-Forwarded-For", "192.0.2.1"}, true, false},
		{"127.0.0.1:5", []string{"Origin", "http://example.com"}, true, false},
		{"somewhere", nil, true, false},
	} {
		secret := n.secret
		if !tt.secret {
			n.secret = nil
		}
		for _, path := range []string{"/resign", "/v1/transfer?to=x"} {
			r := httptest.NewRequest("POST", path, nil)
			r.RemoteAddr = tt.from
			for i := 0; i+1 < len(tt.headers); i += 2 {
				r.Header.Set(tt.headers[i], tt.headers[i+1])
			}
			w := httptest.NewRecorder()
			n.routes().ServeHTTP(w, r)
			// An admitted caller is told that this node does not lead.
			if let := w.Code != 403; let != tt.want {
				t.Errorf("%s from %s with %s: %d %s", path, tt.from, tt.headers, w.Code, w.Body)
			}
		}
		n.secret = secret
	}
	if err := os.WriteFile(file, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readSecret(file); err == nil || strings.Contains(err.Error(), "short") {
		t.Errorf("a short credential: %v", err)
	}
}

// The query of /next is parsed like any other query.
func TestHowMany(t *testing.T) {
	for query, want := range map[string]uint64{
		"": 1, "n=1": 1, "n=100": 100, "n=100000": 100000, "x=1": 1, "x=1&n=5": 5, "n=%35": 5,
		"n=": 0, "n=0": 0, "n=-1": 0, "n=100001": 0, "n=9999999999999999999999": 0, "n=1e3": 0, "n=%zz": 0,
	} {
		got, err := howMany(query)
		if (err == nil) != (want > 0) || got != want {
			t.Errorf("%q: %d, %v, want %d", query, got, err, want)
		}
	}
}
