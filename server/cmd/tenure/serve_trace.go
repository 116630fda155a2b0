package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// traces holds the flags of tracing. Without an endpoint there are no spans.
type traces struct {
	endpoint string
	sample   float64
}

const (
	traceEnv   = "OTEL_EXPORTER_OTLP_ENDPOINT"
	traceBatch = 2 * time.Second
	traceFlush = 5 * time.Second
)

func (t *traces) validate() error {
	if t.endpoint == "" {
		t.endpoint = os.Getenv(traceEnv)
	}
	if t.endpoint == "" {
		return nil
	}
	u, err := url.Parse(t.endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return errors.New("otlp-endpoint: must be a URL without a password, such as http://127.0.0.1:4318")
	}
	if t.sample < 0 || t.sample > 1 {
		return fmt.Errorf("otlp-sample: %v must be from 0 to 1", t.sample)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
		t.endpoint = u.String()
	}
	return nil
}

// open returns a tracer, nil without an endpoint, and a function that sends the last spans.
func (t *traces) open(ctx context.Context, log *slog.Logger) (trace.Tracer, func(), error) {
	if t.endpoint == "" {
		return nil, func() {}, nil
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(t.endpoint), otlptracehttp.WithTimeout(traceFlush))
	if err != nil {
		return nil, nil, fmt.Errorf("otlp-endpoint: %w", err)
	}
	provider := sdk.NewTracerProvider(
		sdk.WithBatcher(&loggedExporter{SpanExporter: exporter, log: log, endpoint: t.endpoint}, sdk.WithBatchTimeout(traceBatch)),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(t.sample))),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "tenure"))),
	)
	flush := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceFlush)
		defer cancel()
		_ = provider.Shutdown(ctx) // the exporter has logged it
	}
	return provider.Tracer("tenure/service"), flush, nil
}

// loggedExporter logs once when sending fails and once when it works again, so that an
// outage of the collector does not fill the log.
type loggedExporter struct {
	sdk.SpanExporter
	log      *slog.Logger
	endpoint string
	failing  atomic.Bool
}

func (e *loggedExporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	switch was := e.failing.Swap(err != nil); {
	case err != nil && !was:
		e.log.Warn("cannot send traces; dropping them until sending works", "endpoint", e.endpoint, "err", err)
	case err == nil && was:
		e.log.Info("sending traces works again", "endpoint", e.endpoint)
	}
	return nil
}
