package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A web page of another site cannot use the server, neither by a name that was rebound to the
// server's address nor from its own origin.
func TestOnlyHosts(t *testing.T) {
	calls := 0
	h := OnlyHosts(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++
		WriteJSON(w, 200, "ok")
	}), "0.0.0.0:7420", "Ledger.Internal", "node.internal:99", "")
	for _, tt := range []struct{ host, origin, code string }{
		{"127.0.0.1:7420", "", ""},
		{"[::1]:7420", "", ""},
		{"::1", "", ""},
		{"10.1.2.3", "", ""},
		{"localhost:7420", "", ""},
		{"LOCALHOST", "", ""},
		{"", "", ""},
		{"ledger.internal:7420", "", ""},
		{"LEDGER.internal.", "", ""},
		{"node.internal:7420", "", ""},
		{"127.0.0.1:7420", "http://127.0.0.1:7420", ""},
		{"ledger.internal", "https://ledger.internal", ""},
		{"evil.example:7420", "", "foreign_host"},
		{"evil.example:7420", "http://evil.example:7420", "foreign_host"},
		{"127.0.0.1.evil.example", "", "foreign_host"},
		{"localhost.evil.example", "", "foreign_host"},
		{"127.0.0.1:7420", "http://evil.example", "foreign_origin"},
		{"127.0.0.1:7420", "http://127.0.0.1:8080", "foreign_origin"},
		{"127.0.0.1:7420", "null", "foreign_origin"},
		{"127.0.0.1:7420", "%", "foreign_origin"},
		{"127.0.0.1:7420", strings.Repeat("x", 1<<16), "foreign_origin"},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
		r.Host = tt.host
		if tt.origin != "" {
			r.Header.Set("Origin", tt.origin)
		}
		before := calls
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var p struct{ Code string }
		_ = json.Unmarshal(w.Body.Bytes(), &p)
		if p.Code != tt.code || (w.Code == 403) != (tt.code != "") || (calls > before) != (tt.code == "") || w.Body.Len() > 1024 {
			t.Errorf("Host %q, Origin %.40q: %d %q, want %q", tt.host, tt.origin, w.Code, p.Code, tt.code)
		}
	}
	// An empty Origin header is refused too.
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/", http.NoBody)
	r.Header["Origin"] = []string{""}
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 403 {
		t.Errorf("an empty Origin: %d", w.Code)
	}
}
