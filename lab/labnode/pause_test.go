package labnode

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
)

// An armed pause happens once, and only at its moment. It does not happen after it was
// disarmed or has expired.
func TestArmed(t *testing.T) {
	t.Parallel()
	host := handAt(1000)
	n := &Hooks{cfg: Config{ID: "node-1"}, log: slog.New(slog.DiscardHandler), host: host}
	handler := n.Handler(http.NotFoundHandler())
	call := func(method, query string) int {
		r := httptest.NewRequest(method, "/lab/pause"+query, nil)
		r.RemoteAddr = "127.0.0.1:1"
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	if n.pause.take(api.MomentWrite, host.Now()) {
		t.Error("it stops though nothing is armed")
	}
	for _, tt := range []struct{ query, at, other string }{
		{"", api.MomentWrite, api.MomentGranted},
		{"?at=granted", api.MomentGranted, api.MomentWrite},
		{"?at=sealed", api.MomentSealed, api.MomentResigning},
		{"?at=resigning", api.MomentResigning, api.MomentSealed},
	} {
		arm := func() {
			if code := call(http.MethodPost, tt.query); code != http.StatusOK {
				t.Errorf("arming %q: %d", tt.query, code)
			}
		}
		arm()
		if n.pause.take(tt.other, host.Now()) || !n.pause.take(tt.at, host.Now()) || n.pause.take(tt.at, host.Now()) {
			t.Errorf("%s: it does not stop once, and there", tt.at)
		}
		arm()
		if code := call(http.MethodDelete, ""); code != http.StatusOK || n.pause.take(tt.at, host.Now()) {
			t.Errorf("%s: %d, or it stops though it was taken back", tt.at, code)
		}
		arm()
		if host.pass(labapi.ArmedFor + 1); n.pause.take(tt.at, host.Now()) {
			t.Errorf("%s: it stops long after it was armed", tt.at)
		}
	}
	if code := call(http.MethodPost, "?at=noon"); code != http.StatusBadRequest || n.pause.armed.Load() != nil {
		t.Errorf("an unknown moment: %d", code)
	}
}
