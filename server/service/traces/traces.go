// Package traces makes the spans of one instance of the service.
package traces

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
)

// maxOpenTerms bounds the terms that are remembered; further terms have no span.
const maxOpenTerms = 10_000

// Spans makes spans of requests, handovers and terms. It makes a span for each term that this
// instance granted, so that each term has one span however many instances watch it. The
// election before the term is a child.
type Spans struct {
	tracer trace.Tracer // nil: no spans
	view   func(group string) (v store.View, synced bool)

	mu   sync.Mutex
	open map[string]openTerm // by group: terms that this instance granted
	seen map[string]vacancy  // by group: the last election, which the feed may show before the grant returns
}

// New returns spans of a tracer; nil: none. view returns what the feed knows of a group.
func New(tracer trace.Tracer, view func(group string) (v store.View, synced bool)) *Spans {
	return &Spans{tracer: tracer, view: view, open: make(map[string]openTerm), seen: make(map[string]vacancy)}
}

// Request makes a span for each request of a route, below the span of the caller if it sends
// one. Without a tracer it returns the handler itself.
func (s *Spans) Request(method, path string, next http.HandlerFunc) http.HandlerFunc {
	if s.tracer == nil {
		return next
	}
	always := trace.WithAttributes(attribute.String("http.request.method", method), attribute.String("http.route", path))
	return func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := s.tracer.Start(ctx, method+" "+path, always, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		// A name that is not valid may contain anything, and spans leave this process.
		if g := r.PathValue("group"); store.ValidName(g) {
			span.SetAttributes(attribute.String("tenure.group", g))
		}
		seen := &spanWriter{Recorder: httpapi.Recorder{ResponseWriter: w, Status: http.StatusOK}}
		next(seen, r.WithContext(ctx))
		span.SetAttributes(attribute.Int("http.response.status_code", seen.Status))
		if seen.code != "" {
			span.SetAttributes(attribute.String("tenure.code", seen.code))
		}
		if seen.Status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, seen.code)
		}
	}
}

type openTerm struct {
	token fence.Token
	ctx   context.Context
	span  trace.Span
}

type vacancy struct {
	token    fence.Token
	from, to time.Time
}

func termAttributes(group string, token fence.Token, node string) trace.SpanStartEventOption {
	return trace.WithAttributes(attribute.String("tenure.group", group), attribute.String("tenure.term", token.String()),
		attribute.String("tenure.leader_node_id", node))
}

// Granted takes records that this instance has granted.
func (s *Spans) Granted(records ...store.Record) {
	if s.tracer == nil {
		return
	}
	for _, r := range records {
		s.mu.Lock()
		if len(s.open) < maxOpenTerms {
			s.end(r)
			ctx, span := s.tracer.Start(context.Background(), "term", termAttributes(r.Group, r.Token, r.Candidate.ID))
			s.open[r.Group] = openTerm{r.Token, ctx, span}
			s.election(r.Group, r.Token, r.Candidate.ID)
		}
		s.mu.Unlock()
		// The feed may have shown the end of the term before the grant returned.
		if v, synced := s.view(r.Group); synced {
			s.Changed(v, 0)
		}
	}
}

// election makes the span of the election of a term, once the grant and the vacancy are known.
func (s *Spans) election(group string, token fence.Token, node string) {
	last, seen := s.open[group], s.seen[group]
	if last.token != token || seen.token != token {
		return
	}
	delete(s.seen, group)
	ctx := last.ctx
	_, election := s.tracer.Start(ctx, "election", termAttributes(group, token, node), trace.WithTimestamp(seen.from))
	election.End(trace.WithTimestamp(seen.to))
}

// Changed takes a change from the feed. vacant is how long nobody led before it.
func (s *Spans) Changed(v store.View, vacant time.Duration) {
	if s.tracer == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.State == tenure.Led && vacant > 0 {
		if len(s.seen) >= maxOpenTerms {
			clear(s.seen)
		}
		now := time.Now()
		s.seen[v.Group] = vacancy{v.Token, now.Add(-vacant), now}
		s.election(v.Group, v.Token, v.Candidate.ID)
	}
	if last := s.open[v.Group]; v.Token > last.token || v.Token == last.token && v.State != tenure.Led {
		s.end(v.Record)
	}
}

// end ends the span of the previous term, if there is one.
func (s *Spans) end(r store.Record) {
	last, lasts := s.open[r.Group]
	if !lasts {
		return
	}
	for _, old := range r.Terms {
		if old.Token == last.token && old.Reason != "" {
			last.span.SetAttributes(attribute.String("tenure.reason", string(old.Reason)))
		}
	}
	last.span.End()
	delete(s.open, r.Group)
}

// Close ends the spans of terms that have not ended.
func (s *Spans) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for group, o := range s.open {
		o.span.SetAttributes(attribute.Bool("tenure.unfinished", true))
		o.span.End()
		delete(s.open, group)
	}
}

// Handover makes a span for a handover, within the span of the request that made it.
func (s *Spans) Handover(ctx context.Context, began time.Time, group string, term fence.Token, to, outcome string) {
	if s.tracer == nil || to == "" {
		return
	}
	_, span := s.tracer.Start(ctx, "handover", trace.WithTimestamp(began), trace.WithAttributes(attribute.String("tenure.group", group),
		attribute.String("tenure.term", term.String()), attribute.String("tenure.to", to), attribute.String("tenure.outcome", outcome)))
	span.End()
}

// spanWriter records the status of an answer and the code of a refusal.
type spanWriter struct {
	httpapi.Recorder
	code string
}

func (w *spanWriter) Write(b []byte) (int, error) {
	if w.Status >= http.StatusBadRequest && w.code == "" {
		var p struct {
			Code string `json:"code"`
		}
		if json.Unmarshal(b, &p) == nil {
			w.code = p.Code
		}
	}
	return w.ResponseWriter.Write(b)
}
