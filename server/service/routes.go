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

// Route is one row of the table: everything that is served is in it, with what it
// demands of its callers and what it says to them.
type Route struct {
	Method, Path string // without /v1, which is served too
	// Verb that the caller needs, on each of Groups; nil is every group there is.
	Verb auth.Verb
	// Or are verbs that do as well, for part of what the route does.
	Or     []auth.Verb
	Groups func(*http.Request) []string
	// Renewal: it keeps leaders leading or ends terms in order, so it has places that
	// nothing else takes. Campaign: it may begin terms, and few are handled at once.
	Renewal, Campaign bool
	// Waits reports whether a request will be held open.
	Waits  func(*http.Request) bool
	Handle http.HandlerFunc

	// Doc describes it; what is not described is not answered.
	Doc openapi.Operation
}

// Routes returns the table.
func (s *Service) Routes() []Route { return slices.Clone(s.routes) }

// mount puts every row behind the gate. A row without a verb, or without a
// description, is an error.
func (s *Service) mount() error {
	s.routes = s.table()
	remote, err := s.storeRoutes()
	if err != nil {
		return err
	}
	s.routes = append(s.routes, remote...)
	mux := httpapi.NewMux()
	for _, r := range s.routes {
		if r.Handle == nil || r.Doc.Summary == "" {
			return fmt.Errorf("service: %s %s has no handler, or no description", r.Method, r.Path)
		}
		inner := s.strictQuery(r.Doc, r.Handle)
		guarded, err := s.gate.Guard(auth.Rule{Verb: r.Verb, Or: r.Or, Groups: r.Groups, Renewal: r.Renewal, Campaign: r.Campaign, Waits: r.Waits}, inner)
		if err != nil {
			return fmt.Errorf("service: %s %s: %w", r.Method, r.Path, err)
		}
		mux.Handle(r.Method, r.Path, s.traced(r, s.measured(r, guarded)))
	}
	s.document, err = s.describe()
	s.handler = mux
	return err
}

// strictQuery refuses parameters that a route does not have: a misspelt option must not
// be ignored.
func (s *Service) strictQuery(d openapi.Operation, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var seen uint64 // one bit for each of the few that a route has
		for name := range httpapi.Query(r.URL) {
			i := slices.IndexFunc(d.Query, func(p openapi.Parameter) bool { return p.Name == name })
			if i < 0 || seen>>i&1 == 1 && !d.Query[i].Many {
				httpapi.WriteProblem(w, bad("bad_query", "%q is no parameter of this request, or is there twice", clip(name)))
				return
			}
			seen |= 1 << i
		}
		next(w, r)
	}
}

// answer turns a handler that returns its error into one that writes it. What a handler
// denies, after the gate let it pass, is audited here, so that none can forget to.
func (s *Service) answer(f func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := f(w, r)
		if err == nil {
			return
		}
		p := explain(err)
		if p.Status == http.StatusForbidden {
			s.record(r.Context(), r.Pattern, groupOf(r), 0, p, "")
		}
		httpapi.WriteProblem(w, p)
	}
}

// recorder notes the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap lets a ResponseController through.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (s *Service) measured(route Route, next http.HandlerFunc) http.HandlerFunc {
	served := s.metrics.server(route.Method + " " + route.Path)
	return func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		next(rec, r)
		if route.Waits == nil || !route.Waits(r) {
			served(rec.status, time.Since(begin))
		}
	}
}

func thisGroup(r *http.Request) []string { return []string{groupOf(r)} }

func someGroup(*http.Request) []string { return []string{auth.SomeGroup} }

func waits(r *http.Request) bool { return r.URL.Query().Has("wait") }

func always(*http.Request) bool { return true }
