package service

import (
	"encoding/json"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

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
