package ledger

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/state"
)

// metrics are those of one ledger.
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
	fires      *prometheus.CounterVec
	delivered  prometheus.Counter
	shared     *prometheus.CounterVec
	acting     *prometheus.Desc
	jobs       *prometheus.Desc
	pending    *prometheus.Desc

	mu     sync.Mutex
	actors map[string]*actor
}

// actor has the metrics of a resource.
type actor struct {
	actors
	state.Counters
}

func newMetrics(cfg Config, queued func() int) *metrics {
	registry := prometheus.NewRegistry()
	auto := promauto.With(registry)
	counter := func(name, help string) prometheus.Counter {
		return auto.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help, label string, values ...string) *prometheus.CounterVec {
		c := auto.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		for _, v := range values {
			c.WithLabelValues(v)
		}
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return auto.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	byResource := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"resource"}, nil)
	}
	m := &metrics{
		registry: registry, clock: cfg.Clock, window: cfg.ActingWindow, actors: make(map[string]*actor),
		rejected: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "tenure_fence_rejected_total", Help: "Writes that the rule refuses, by reason. With fencing off they were made anyway."}, []string{"sink", "reason"}),
		violations: counter("tenure_split_brain_detected_total", "Writes that took effect after one with a higher token."),
		accepted:   counter("tenure_ledger_batches_total", "Batches and seals that took effect."),
		turnedAway: counter("tenure_ledger_turned_away_total", "Batches that found the queue full or closed."),
		commits:    counters("tenure_ledger_commits_total", "Transactions, by outcome: ok, failed, unknown.", "outcome", "ok", "failed", "unknown"),
		group:      histogram("tenure_ledger_group_size", "Batches that shared a transaction.", prometheus.ExponentialBuckets(1, 2, 12)),
		latency:    histogram("tenure_ledger_commit_seconds", "Duration of a transaction, fsync included.", prometheus.ExponentialBuckets(0.0001, 2, 17)),
		fires: counters("tenure_ledger_fires_total", "Jobs that a leader fired, by outcome: fired, skipped, duplicate (recorded before), moved (nothing was done).",
			"outcome", "fired", "skipped", "duplicate", "moved"),
		delivered: counter("tenure_ledger_delivered_total", "Firings that were reported as delivered, each counted once."),
		shared:    counters("tenure_ledger_shared_writes_total", "Writes to shared records, by outcome: ok, conflict (another version), failed.", "outcome", "ok", "conflict", "failed"),
		jobs:      byResource("tenure_ledger_jobs", "Jobs of the resource."),
		pending:   byResource("tenure_ledger_firings_pending", "Firings that are not delivered yet."),
		acting:    byResource("leaders_acting", "Leaders whose writes took effect within the acting window. 2 or more means a split brain."),
	}
	for _, reason := range []string{"stale", "slip", "foreign", "clone", "invalid"} {
		m.rejected.WithLabelValues("ledger", reason)
	}
	auto.NewGaugeFunc(prometheus.GaugeOpts{Name: "tenure_ledger_queue", Help: "Batches that wait for a commit."}, func() float64 { return float64(queued()) })
	registry.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// addResources adds resources to leaders_acting before they are written to.
func (m *metrics) addResources(resources map[string]state.Counters) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, c := range resources {
		m.actors[name] = &actor{Counters: c}
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

func (m *metrics) judged(o *op, v state.Verdict, now clock.Instant) {
	b := &o.batch
	switch o.kind {
	case probe:
		return
	case share:
		m.sharedWrite(v.Err)
		return
	}
	m.refused(v.Refused)
	if v.Violation {
		m.violations.Inc()
	}
	if !v.Accepted {
		return
	}
	m.accepted.Inc()
	for i, done := range v.Answer.Outcomes {
		switch {
		case done.Fire != nil:
			m.fired(b.Writes[i].Fire.Skip, done.Fire)
		case done.Delivered != nil && *done.Delivered == api.DeliveredOutcome{}:
			m.delivered.Inc()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.actors[b.Resource]
	if a == nil {
		a = &actor{}
		m.actors[b.Resource] = a
	}
	a.Counters = v.Counters
	a.accept(b.Stamp.Token, now, m.window)
}

func (m *metrics) fired(skip bool, o *api.FireOutcome) {
	outcome := "fired"
	switch {
	case o.Moved:
		outcome = "moved"
	case o.Duplicate:
		outcome = "duplicate"
	case skip:
		outcome = "skipped"
	}
	m.fires.WithLabelValues(outcome).Inc()
}

func (m *metrics) sharedWrite(err error) {
	var version *api.VersionError
	outcome := "ok"
	switch {
	case errors.As(err, &version):
		outcome = "conflict"
	case err != nil:
		outcome = "failed"
	}
	m.shared.WithLabelValues(outcome).Inc()
}

// LeadersActing is the gauge leaders_acting of a resource.
func (l *Ledger) LeadersActing(resource string) int {
	m := l.metrics
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.actors[resource]; a != nil {
		return a.acting(m.clock.Now(), m.window)
	}
	return 0
}

// Describe implements prometheus.Collector, for the metrics by resource. leaders_acting is
// computed at each scrape, so it falls to 0 when nobody writes.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	to <- m.acting
	to <- m.jobs
	to <- m.pending
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	now := m.clock.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, a := range m.actors {
		to <- prometheus.MustNewConstMetric(m.acting, prometheus.GaugeValue, float64(a.acting(now, m.window)), name)
		if a.JobsVersion > 0 {
			to <- prometheus.MustNewConstMetric(m.jobs, prometheus.GaugeValue, float64(a.Jobs), name)
			to <- prometheus.MustNewConstMetric(m.pending, prometheus.GaugeValue, float64(a.Pending), name)
		}
	}
}
