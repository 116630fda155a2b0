package service

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/openapi"
)

// Route is one row of the table of everything that is served.
type Route struct {
	Method, Path string // without /v1, which is served too
	auth.Rule
	Handle http.HandlerFunc
	Doc    openapi.Operation
}

// Routes returns the table.
func (s *Service) Routes() []Route { return slices.Clone(s.routes) }

// mount puts every route behind the gate. A route without a verb or a description is an error.
func (s *Service) mount() error {
	remote, err := s.storeRoutes()
	if err != nil {
		return err
	}
	s.routes = append(s.table(), remote...)
	mux := httpapi.NewMux()
	for _, r := range s.routes {
		if r.Handle == nil || r.Doc.Summary == "" {
			return fmt.Errorf("service: %s %s has no handler or no description", r.Method, r.Path)
		}
		guarded, err := s.gate.Guard(r.Rule, s.strictQuery(r.Doc, r.Handle))
		if err != nil {
			return fmt.Errorf("service: %s %s: %w", r.Method, r.Path, err)
		}
		mux.Handle(r.Method, r.Path, s.spans.Request(r.Method, r.Path, s.measured(r, guarded)))
	}
	if s.cfg.Console != nil {
		page, err := s.gate.Guard(auth.Rule{Verb: auth.Open, Page: true}, s.cfg.Console.ServeHTTP)
		if err != nil {
			return err
		}
		mux.Handle("GET", "/ui/", page)
	}
	s.document, err = s.describe()
	s.handler = mux
	return err
}

// strictQuery refuses parameters that a route does not have: a misspelt option must not be
// ignored.
func (s *Service) strictQuery(d openapi.Operation, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var seen uint64 // one bit per parameter of the route
		for name := range httpapi.Query(r.URL) {
			i := slices.IndexFunc(d.Query, func(p openapi.Parameter) bool { return p.Name == name })
			if i < 0 || seen>>i&1 == 1 && !d.Query[i].Many {
				httpapi.WriteProblem(w, bad("bad_query", "this request has no parameter %q, or it is given twice", clip(name)))
				return
			}
			seen |= 1 << i
		}
		next(w, r)
	}
}

// handler returns the body of the answer, or an error. A nil body: it has written the answer.
type handler func(http.ResponseWriter, *http.Request) (any, error)

// withStatus is an answer with another status than 200.
type withStatus struct {
	status int
	body   any
}

// answer writes what a handler returns. It also audits what a handler denies, so that no
// handler can forget to.
func (s *Service) answer(f handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out, err := f(w, r)
		if err != nil {
			p := explain(err)
			if p.Status == http.StatusForbidden {
				s.record(r.Context(), r.Pattern, groupOf(r), 0, p, "")
			}
			httpapi.WriteProblem(w, p)
			return
		}
		switch out := out.(type) {
		case nil:
		case withStatus:
			httpapi.WriteJSON(w, out.status, out.body)
		default:
			httpapi.WriteJSON(w, http.StatusOK, out)
		}
	}
}

// reads returns a handler that decodes the body of the request first.
func reads[In any](s *Service, emptyAllowed bool, f func(http.ResponseWriter, *http.Request, In) (any, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		var in In
		if err := httpapi.ReadJSON(w, r, s.cfg.MaxBody, emptyAllowed, &in); err != nil {
			return nil, err
		}
		if form, ok := any(&in).(interface{ settle() error }); ok {
			if err := form.settle(); err != nil {
				return nil, err
			}
		}
		return f(w, r, in)
	}
}

func (s *Service) measured(route Route, next http.HandlerFunc) http.HandlerFunc {
	served := s.metrics.Requests(route.Method + " " + route.Path)
	return func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		rec := &httpapi.Recorder{ResponseWriter: w, Status: http.StatusOK}
		next(rec, r)
		if route.Waits == nil || !route.Waits(r) {
			served(rec.Status, time.Since(begin))
		}
	}
}

func groupOf(r *http.Request) string { return r.PathValue("group") }

func thisGroup(r *http.Request) []string { return []string{groupOf(r)} }

func waits(r *http.Request) bool { return r.URL.Query().Has("wait") }
