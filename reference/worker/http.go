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
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// Status is the answer to GET /status. Numbers without another word count since the
// process began.
type Status struct {
	ID string `json:"id"`
	// Token is the highest that was ever seen, of Group in Deployment.
	Token      fence.Token `json:"token"`
	Group      string      `json:"group,omitempty"`
	Deployment string      `json:"deployment,omitempty"`
	// Orders are the standing ones.
	Orders []Standing `json:"orders"`
	// Accepted are orders, Refused are requests that the fence refused, Duplicates are
	// firings that had been had before.
	Accepted   uint64 `json:"accepted"`
	Refused    uint64 `json:"refused"`
	Duplicates uint64 `json:"duplicates"`
	// Waiting were accepted and are not done, Done were, Failed of those with an error.
	Waiting int    `json:"waiting"`
	Done    uint64 `json:"done"`
	Failed  uint64 `json:"failed"`
	// Interrupted were ended by a higher token, and begun again.
	Interrupted uint64 `json:"interrupted"`
	// Counts are what the handler "count" has counted.
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

// handler serves the worker's HTTP; what it starts ends with work.
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
	var o Orders
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
		httpapi.WriteProblem(rw, &httpapi.Problem{Status: http.StatusTooManyRequests, Code: "busy", Detail: err.Error() + ": none was accepted", Retryable: true, RetryAfter: time.Second})
	case errors.Is(err, errNotStored):
		w.cfg.Log.Error("orders could not be taken", "error", err)
		httpapi.WriteProblem(rw, &httpapi.Problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Detail: "the worker cannot store orders now, none was accepted", Retryable: true, RetryAfter: time.Second})
	default:
		w.cfg.Log.Error("orders could not be taken", "error", err)
		httpapi.WriteProblem(rw, &httpapi.Problem{Status: http.StatusInternalServerError, Code: "outcome_unknown", Detail: "whether the orders were stored is unknown: send them again, those that were are not done twice", Retryable: true})
	}
}

// metrics are kept per worker, not per process.
type metrics struct {
	registry *prometheus.Registry
	orders   *prometheus.CounterVec
	rejected *prometheus.CounterVec
	runs     *prometheus.CounterVec
	running  prometheus.Gauge
}

func newMetrics(w *worker) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		orders: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tenure_worker_orders_total", Help: "Orders that were taken, by outcome: accepted, duplicate."}, []string{"outcome"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tenure_fence_rejected_total", Help: "Requests that the rule refuses, by reason."}, []string{"sink", "reason"}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tenure_worker_runs_total", Help: "How often orders were acted on, by kind (once, standing) and outcome (ok, failed, interrupted)."}, []string{"kind", "outcome"}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tenure_worker_running", Help: "Orders that are being acted on."}),
	}
	for _, reason := range []string{"stale", "slip", "foreign", "clone", "invalid"} {
		m.rejected.WithLabelValues("worker", reason)
	}
	number := func(name, help string, of func(*worker) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			w.mu.Lock()
			defer w.mu.Unlock()
			return of(w)
		})
	}
	m.registry.MustRegister(m.orders, m.rejected, m.runs, m.running,
		number("tenure_token", "The highest token that was seen.", func(w *worker) float64 { return float64(w.current.Token) }),
		number("tenure_worker_waiting", "Orders that were accepted and are not done.", func(w *worker) float64 { return float64(w.waiting) }),
		number("tenure_worker_standing", "Standing orders.", func(w *worker) float64 { return float64(len(w.standing)) }),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}
