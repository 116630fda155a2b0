package ledger

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tenurehq/tenure/app/ledger/api"
	"github.com/tenurehq/tenure/clock"
)

// metrics are kept per ledger, not per process.
type metrics struct {
	registry   *prometheus.Registry
	clock      clock.Clock
	window     time.Duration
	rejected   *prometheus.CounterVec
	violations prometheus.Counter
	accepted   prometheus.Counter
	turnedAway prometheus.Counter
	commits    *prometheus.CounterVec
	group      prometheus.Histogram
	latency    prometheus.Histogram
	acting     *prometheus.Desc

	mu     sync.Mutex
	actors map[string]*actors
}

func newMetrics(cfg Config, queued func() int) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(), clock: cfg.Clock, window: cfg.ActingWindow, actors: make(map[string]*actors),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tenure_fence_rejected_total", Help: "Writes that the rule refuses, by reason; with fencing off they were made all the same."}, []string{"sink", "reason"}),
		violations: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tenure_split_brain_detected_total", Help: "Writes that took effect after one of a higher token."}),
		accepted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tenure_ledger_batches_total", Help: "Batches and seals that took effect."}),
		turnedAway: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tenure_ledger_turned_away_total", Help: "Batches that found the queue full or closed."}),
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tenure_ledger_commits_total", Help: "Transactions, by outcome: ok, failed, unknown."}, []string{"outcome"}),
		group: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tenure_ledger_group_size", Help: "Batches that shared a transaction.", Buckets: prometheus.ExponentialBuckets(1, 2, 12)}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tenure_ledger_commit_seconds", Help: "How long a transaction took, fsync included.", Buckets: prometheus.ExponentialBuckets(0.0001, 2, 17)}),
		acting: prometheus.NewDesc("leaders_acting", "Leaders whose writes took effect within the acting window: 2 or more means a split brain.", []string{"resource"}, nil),
	}
	for _, reason := range []string{"stale", "slip", "foreign", "clone", "invalid"} {
		m.rejected.WithLabelValues("ledger", reason)
	}
	for _, outcome := range []string{"ok", "failed", "unknown"} {
		m.commits.WithLabelValues(outcome)
	}
	m.registry.MustRegister(m.rejected, m.violations, m.accepted, m.turnedAway, m.commits, m.group, m.latency, m,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tenure_ledger_queue", Help: "Batches that wait for a commit."}, func() float64 { return float64(queued()) }),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// know makes resources appear in leaders_acting before somebody acts on them.
func (m *metrics) know(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		m.actors[name] = &actors{}
	}
}

func (m *metrics) refused(err error) {
	if reason := api.Reason(err); reason != "" {
		m.rejected.WithLabelValues("ledger", reason).Inc()
	}
}

func (m *metrics) committed(size int, took time.Duration, err error) {
	outcome := "ok"
	switch {
	case errors.Is(err, api.ErrUnknown):
		outcome = "unknown"
	case err != nil:
		outcome = "failed"
	}
	m.commits.WithLabelValues(outcome).Inc()
	m.group.Observe(float64(size))
	m.latency.Observe(took.Seconds())
}

func (m *metrics) judged(b api.Batch, v verdict, now clock.Instant) {
	m.refused(v.refused)
	if v.violation {
		m.violations.Inc()
	}
	if !v.accepted {
		return
	}
	m.accepted.Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.actors[b.Resource]
	if a == nil {
		a = &actors{}
		m.actors[b.Resource] = a
	}
	a.accept(b.Stamp.Token, now, m.window)
}

// leaders is leaders_acting of a resource.
func (m *metrics) leaders(resource string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.actors[resource]
	if a == nil {
		return 0
	}
	return a.acting(m.clock.Now(), m.window)
}

// Describe implements prometheus.Collector, for leaders_acting: it is computed when
// it is asked for, so that it falls to 0 when nobody writes.
func (m *metrics) Describe(to chan<- *prometheus.Desc) { to <- m.acting }

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	now := m.clock.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, a := range m.actors {
		to <- prometheus.MustNewConstMetric(m.acting, prometheus.GaugeValue, float64(a.acting(now, m.window)), name)
	}
}
