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
	"github.com/tenurehq/tenure/store"
)

// traced makes a span for each request, below the span of the caller if it sends one. Without
// a tracer it returns the handler itself.
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
		// An invalid name could be anything, and spans leave this process.
		if g := groupOf(r); store.ValidName(g) {
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

// maxOpenTerms bounds the terms that are remembered; further terms have no span.
const maxOpenTerms = 10_000

// termSpans makes a span for each term that this instance granted, so that each term has one
// span however many instances watch it. The election before the term is a child.
type termSpans struct {
	tracer trace.Tracer // nil: no spans
	feed   interface {
		View(group string) (store.View, bool)
	}

	mu   sync.Mutex
	open map[string]openTerm // by group: terms that this instance granted
	seen map[string]vacancy  // by group: the last election, which the feed may show before the grant returns
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

// granted takes records that this instance has granted.
func (t *termSpans) granted(records ...store.Record) {
	if t.tracer == nil {
		return
	}
	for _, r := range records {
		t.mu.Lock()
		if len(t.open) < maxOpenTerms {
			t.end(r)
			ctx, span := t.tracer.Start(context.Background(), "term", termAttributes(r.Group, r.Token, r.Candidate.ID))
			t.open[r.Group] = openTerm{r.Token, ctx, span}
			t.election(r.Group, r.Token, r.Candidate.ID)
		}
		t.mu.Unlock()
		// The feed may have shown the end of the term before the grant returned.
		if v, synced := t.feed.View(r.Group); synced {
			t.changed(v, 0)
		}
	}
}

// election makes the span of the election of a term, once the grant and the vacancy are known.
func (t *termSpans) election(group string, token fence.Token, node string) {
	last, seen := t.open[group], t.seen[group]
	if last.token != token || seen.token != token {
		return
	}
	delete(t.seen, group)
	ctx := last.ctx
	_, election := t.tracer.Start(ctx, "election", termAttributes(group, token, node), trace.WithTimestamp(seen.from))
	election.End(trace.WithTimestamp(seen.to))
}

// changed takes a change from the feed. vacant is how long nobody led before it.
func (t *termSpans) changed(v store.View, vacant time.Duration) {
	if t.tracer == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.State == tenure.Led && vacant > 0 {
		if len(t.seen) >= maxOpenTerms {
			clear(t.seen)
		}
		now := time.Now()
		t.seen[v.Group] = vacancy{v.Token, now.Add(-vacant), now}
		t.election(v.Group, v.Token, v.Candidate.ID)
	}
	if last := t.open[v.Group]; v.Token > last.token || v.Token == last.token && v.State != tenure.Led {
		t.end(v.Record)
	}
}

// end ends the span of the term before, if there is one.
func (t *termSpans) end(r store.Record) {
	last, lasts := t.open[r.Group]
	if !lasts {
		return
	}
	for _, old := range r.Terms {
		if old.Token == last.token && old.Reason != "" {
			last.span.SetAttributes(attribute.String("tenure.reason", string(old.Reason)))
		}
	}
	last.span.End()
	delete(t.open, r.Group)
}

// close ends the spans of terms that last.
func (t *termSpans) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for group, o := range t.open {
		o.span.SetAttributes(attribute.Bool("tenure.unfinished", true))
		o.span.End()
		delete(t.open, group)
	}
}

// traceHandover makes a span for a handover, within the span of the request that made it.
func (s *Service) traceHandover(ctx context.Context, began time.Time, group string, term fence.Token, to, outcome string) {
	if s.cfg.Tracer == nil || to == "" {
		return
	}
	_, span := s.cfg.Tracer.Start(ctx, "handover", trace.WithTimestamp(began), trace.WithAttributes(attribute.String("tenure.group", group),
		attribute.String("tenure.term", term.String()), attribute.String("tenure.to", to), attribute.String("tenure.outcome", outcome)))
	span.End()
}

// spanWriter notes the status of an answer and the code of a refusal.
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
