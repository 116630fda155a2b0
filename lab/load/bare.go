package load

import "net/http"

// Bare answers every call with a constant, to measure what HTTP alone costs on this machine.
// It says that it leads, so that Run calls it like a node.
func Bare() http.Handler {
	next := []byte(`{"token":1,"seq":1000000}` + "\n")
	status := []byte(`{"node_id":"bare","role":"leader","fence_token":1,"working":true}` + "\n")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		body := next
		if r.Method == http.MethodGet {
			body = status
		}
		_, _ = w.Write(body) // the caller may be gone
	})
}
