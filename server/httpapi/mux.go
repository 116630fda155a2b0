package httpapi

import (
	"net/http"
	"strings"
)

// Mux routes requests to handlers. It answers unknown paths and methods with problem+json. Each
// path is served with and without /v1.
type Mux struct {
	mux     *http.ServeMux
	methods map[string][]string // by path, those that are handled
}

// NewMux returns a Mux without routes.
func NewMux() *Mux {
	m := &Mux{mux: http.NewServeMux(), methods: make(map[string][]string)}
	m.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		WriteProblem(w, Refuse(http.StatusNotFound, "no_such_path", "nothing is served at %s", clip(r.URL.Path)))
	})
	return m
}

// Handle routes a method and a path, as http.ServeMux does.
func (m *Mux) Handle(method, path string, h http.HandlerFunc) {
	for _, p := range []string{"/v1" + path, path} {
		m.mux.HandleFunc(method+" "+p, h)
		if len(m.methods[p]) == 0 {
			m.mux.HandleFunc(p, func(w http.ResponseWriter, r *http.Request) { m.wrongMethod(w, r, p) })
		}
		m.methods[p] = append(m.methods[p], method)
	}
}

func (m *Mux) wrongMethod(w http.ResponseWriter, r *http.Request, path string) {
	allowed := strings.Join(m.methods[path], ", ")
	w.Header().Set("Allow", allowed)
	WriteProblem(w, Refuse(http.StatusMethodNotAllowed, "no_such_method", "%s is not allowed here; use %s", clip(r.Method), allowed))
}

// ServeHTTP implements http.Handler.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.mux.ServeHTTP(w, r) }

func clip(s string) string {
	const most = 128
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
