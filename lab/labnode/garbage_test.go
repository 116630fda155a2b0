package labnode

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/lab/labapi"
)

// The hooks keep the collector busy for as long as they are asked to. Impossible requests are
// refused.
func TestGarbage(t *testing.T) {
	// Not parallel: it changes the garbage collector of this process.
	h := &Hooks{}
	call := func(body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/lab/garbage", strings.NewReader(body))
		r.RemoteAddr = "127.0.0.1:1"
		w := httptest.NewRecorder()
		h.Handler(http.NotFoundHandler()).ServeHTTP(w, r)
		return w
	}
	var got labapi.Collected
	for range 10 { // on a busy machine it may not run
		w := call(`{"heap_mb":16,"for_ms":300}`)
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%d, %v", w.Code, err)
		}
		if got.Cycles > 1 {
			break
		}
	}
	if got.Cycles < 2 {
		t.Errorf("%+v: the collector did not run", got)
	}
	for _, body := range []string{`{"heap_mb":0,"for_ms":300}`, `{"heap_mb":4096,"for_ms":300}`, `{"heap_mb":4,"for_ms":0}`, `{"heap_mb":4,"for_ms":3600000}`} {
		if w := call(body); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", body, w.Code)
		}
	}
}
