package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// Status is the answer to GET /status. Counts are since the start of the process.
type Status struct {
	ID string `json:"id"`
	// Token is the highest that the worker has ever seen, of Group in Deployment.
	Token      fence.Token `json:"token"`
	Group      string      `json:"group,omitempty"`
	Deployment string      `json:"deployment,omitempty"`
	// Orders are the standing ones.
	Orders []Standing `json:"orders"`
	// Accepted are orders, Refused are requests that the fence refused, Duplicates are firings
	// that the worker has had before.
	Accepted   uint64 `json:"accepted"`
	Refused    uint64 `json:"refused"`
	Duplicates uint64 `json:"duplicates"`
	// Waiting are accepted and not done. Failed are those of Done that ended with an error.
	Waiting int    `json:"waiting"`
	Done    uint64 `json:"done"`
	Failed  uint64 `json:"failed"`
	// Interrupted were interrupted by a higher token and run again.
	Interrupted uint64 `json:"interrupted"`
	// Counts are those of the handler "count".
	Counts map[string]uint64 `json:"counts"`
}

// Standing is a standing order and how often it was acted on.
type Standing struct {
	api.Order
	Runs   uint64 `json:"runs"`
	Failed uint64 `json:"failed"`
	LastMS int64  `json:"last_ms"`
}

func (w *worker) status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Status{
		ID: w.cfg.ID, Token: w.current.Token, Group: w.current.Group, Deployment: w.current.Deployment, Orders: []Standing{},
		Accepted: w.accepted, Refused: w.refused, Duplicates: w.dup, Waiting: w.waiting, Done: w.done, Failed: w.failed, Interrupted: w.cut,
	}
	for _, o := range w.standing {
		s.Orders = append(s.Orders, Standing{Order: o.order, Runs: o.runs, Failed: o.failed, LastMS: o.lastMS})
	}
	slices.SortFunc(s.Orders, func(a, b Standing) int { return strings.Compare(a.Name, b.Name) })
	w.counts.mu.Lock()
	defer w.counts.mu.Unlock()
	s.Counts = maps.Clone(w.counts.by)
	return s
}

// handler serves the worker. Orders that a request starts end with the context work.
func (w *worker) handler(work context.Context) http.Handler {
	mux := httpapi.NewMux()
	mux.Handle("POST", "/orders", func(rw http.ResponseWriter, r *http.Request) {
		a, err := w.order(work, rw, r)
		if err != nil {
			w.fail(rw, err)
			return
		}
		httpapi.WriteJSON(rw, http.StatusOK, a)
	})
	mux.Handle("GET", "/status", func(rw http.ResponseWriter, _ *http.Request) { httpapi.WriteJSON(rw, http.StatusOK, w.status()) })
	mux.Handle("GET", "/healthz", func(rw http.ResponseWriter, r *http.Request) {
		if _, err := w.store.count(r.Context()); err != nil {
			w.fail(rw, fmt.Errorf("%w: %w", errNotStored, err))
			return
		}
		httpapi.WriteJSON(rw, http.StatusOK, map[string]any{"status": "ok", "id": w.cfg.ID})
	})
	mux.Handle("GET", "/metrics", promhttp.HandlerFor(w.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP)
	return mux
}

func (w *worker) order(work context.Context, rw http.ResponseWriter, r *http.Request) (Accepted, error) {
	s, err := httpfence.Guard{}.Admit(r.Context(), r.Header.Values)
	if err != nil {
		return Accepted{}, err
	}
	var o api.Orders
	if err := httpapi.ReadJSON(rw, r, w.cfg.MaxBody, false, &o); err != nil {
		return Accepted{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	return w.accept(ctx, work, s, o)
}

// fail answers with an error, and counts a refusal.
func (w *worker) fail(rw http.ResponseWriter, err error) {
	var problem *httpapi.Problem
	var wrong *orderError
	switch {
	case errors.Is(err, fence.ErrRefused):
		reason := ledgerapi.Reason(err)
		w.mu.Lock()
		w.refused++
		w.mu.Unlock()
		w.metrics.rejected.WithLabelValues("worker", reason).Inc()
		w.cfg.Log.Warn("orders were refused", "reason", reason, "error", err)
		httpfence.WriteError(rw, err)
	case errors.As(err, &problem):
		httpapi.WriteProblem(rw, problem)
	case errors.As(err, &wrong):
		httpapi.WriteProblem(rw, &httpapi.Problem{Status: http.StatusUnprocessableEntity, Code: "invalid_order", Detail: err.Error(), More: map[string]any{"index": wrong.index, "rule": wrong.rule}})
	case errors.Is(err, errTooMany):
		httpapi.WriteProblem(rw, &httpapi.Problem{Status: http.StatusTooManyRequests, Code: "busy", Detail: err.Error() + "; none was accepted", Retryable: true, RetryAfter: time.Second})
	case errors.Is(err, errNotStored):
		w.cfg.Log.Error("cannot accept orders", "error", err)
		httpapi.WriteProblem(rw, &httpapi.Problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Detail: "the worker cannot store orders now; none was accepted", Retryable: true, RetryAfter: time.Second})
	default:
		w.cfg.Log.Error("cannot accept orders", "error", err)
		httpapi.WriteProblem(rw, &httpapi.Problem{Status: http.StatusInternalServerError, Code: "outcome_unknown", Detail: "it is unknown whether the orders were stored; send them again, none is done twice", Retryable: true})
	}
}

// metrics are those of one worker.
type metrics struct {
	registry *prometheus.Registry
	orders   *prometheus.CounterVec
	rejected *prometheus.CounterVec
	runs     *prometheus.CounterVec
	running  prometheus.Gauge
}

func newMetrics(w *worker) *metrics {
	registry := prometheus.NewRegistry()
	auto := promauto.With(registry)
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return auto.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry: registry,
		orders:   counters("tenure_worker_orders_total", "Orders, by outcome: accepted, duplicate.", "outcome"),
		rejected: counters("tenure_fence_rejected_total", "Requests that the fence refused, by reason.", "sink", "reason"),
		runs:     counters("tenure_worker_runs_total", "Runs of orders, by kind (once, standing) and outcome (ok, failed, interrupted).", "kind", "outcome"),
		running:  auto.NewGauge(prometheus.GaugeOpts{Name: "tenure_worker_running", Help: "Orders that run now."}),
	}
	for _, reason := range []string{"stale", "slip", "foreign", "clone", "invalid"} {
		m.rejected.WithLabelValues("worker", reason)
	}
	gauge := func(name, help string, of func() float64) {
		auto.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			w.mu.Lock()
			defer w.mu.Unlock()
			return of()
		})
	}
	gauge("tenure_token", "The highest token that the worker has seen.", func() float64 { return float64(w.current.Token) })
	gauge("tenure_worker_waiting", "Orders that were accepted and are not done.", func() float64 { return float64(w.waiting) })
	gauge("tenure_worker_standing", "Standing orders.", func() float64 { return float64(len(w.standing)) })
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}
