package service

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
	"github.com/tenurehq/tenure/lease"
)

// traced makes a span of each request, below the caller's if it names one. Without a
// tracer there is nothing between the route and its handler.
func (s *Service) traced(route Route, next http.HandlerFunc) http.HandlerFunc {
	if s.cfg.Tracer == nil {
		return next
	}
	name := route.Method + " " + route.Path
	always := trace.WithAttributes(attribute.String("http.request.method", route.Method), attribute.String("http.route", route.Path))
	return func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := s.cfg.Tracer.Start(ctx, name, always, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		// A name that is none could be anything, and a span goes elsewhere.
		if g := groupOf(r); lease.ValidName(g) {
			span.SetAttributes(attribute.String("tenure.group", g))
		}
		seen := &spanWriter{recorder: recorder{ResponseWriter: w, status: http.StatusOK}}
		next(seen, r.WithContext(ctx))
		span.SetAttributes(attribute.Int("http.response.status_code", seen.status))
		if seen.code != "" {
			span.SetAttributes(attribute.String("tenure.code", seen.code))
		}
		if seen.status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, seen.code)
		}
	}
}

// maxOpenTerms bounds the spans of terms that last; further terms have none.
const maxOpenTerms = 10_000

// termSpans makes a span of each term that begins while this instance watches, from when
// it saw the beginning to when it saw the end. The election before it is its child.
type termSpans struct {
	tracer trace.Tracer // nil: none are made
	mu     sync.Mutex
	open   map[string]openTerm // by group
}

type openTerm struct {
	token fence.Token
	span  trace.Span
}

// changed takes a change that the feed brings. vacant is how long nobody led before it.
func (t *termSpans) changed(v lease.View, vacant time.Duration) {
	if t.tracer == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	last, lasts := t.open[v.Group]
	led := v.State == tenure.Led
	if lasts && led && last.token == v.Token {
		return
	}
	if lasts {
		for _, old := range v.Terms {
			if old.Token == last.token && old.Reason != "" {
				last.span.SetAttributes(attribute.String("tenure.reason", string(old.Reason)))
			}
		}
		last.span.End()
		delete(t.open, v.Group)
	}
	if !led || len(t.open) >= maxOpenTerms {
		return
	}
	now := time.Now()
	about := trace.WithAttributes(attribute.String("tenure.group", v.Group), attribute.String("tenure.term", v.Token.String()),
		attribute.String("tenure.leader_node_id", v.Candidate.ID))
	ctx, span := t.tracer.Start(context.Background(), "term", about, trace.WithTimestamp(now))
	t.open[v.Group] = openTerm{v.Token, span}
	if vacant > 0 {
		_, election := t.tracer.Start(ctx, "election", about, trace.WithTimestamp(now.Add(-vacant)))
		election.End(trace.WithTimestamp(now))
	}
}

// close ends the spans of terms that last, which others go on watching.
func (t *termSpans) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for group, o := range t.open {
		o.span.SetAttributes(attribute.Bool("tenure.unfinished", true))
		o.span.End()
		delete(t.open, group)
	}
}

// traceHandover makes a span of a handover, within the span of the request that made it.
func (s *Service) traceHandover(ctx context.Context, began time.Time, group string, term fence.Token, to, outcome string) {
	if s.cfg.Tracer == nil || to == "" {
		return
	}
	_, span := s.cfg.Tracer.Start(ctx, "handover", trace.WithTimestamp(began), trace.WithAttributes(attribute.String("tenure.group", group),
		attribute.String("tenure.term", term.String()), attribute.String("tenure.to", to), attribute.String("tenure.outcome", outcome)))
	span.End()
}

// spanWriter notes the status of an answer, and the code of a refusal.
type spanWriter struct {
	recorder
	code string
}

func (w *spanWriter) Write(b []byte) (int, error) {
	if w.status >= http.StatusBadRequest && w.code == "" {
		var p struct {
			Code string `json:"code"`
		}
		if json.Unmarshal(b, &p) == nil {
			w.code = p.Code
		}
	}
	return w.ResponseWriter.Write(b)
}
