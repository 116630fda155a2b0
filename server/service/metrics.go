package service

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/metric"
)

// labelled is how many groups have a label of their own; the others share one.
const labelled = 500

const otherGroups = "other"

// metrics are those of one instance.
type metrics struct {
	registry     *prometheus.Registry
	toElect      prometheus.Histogram
	changes      *prometheus.CounterVec
	renewFailure *prometheus.CounterVec
	splitBrain   prometheus.Counter
	duplicates   prometheus.Counter
	requests     *prometheus.HistogramVec
	engineTook   prometheus.Histogram
	streams      prometheus.Gauge
	quorum       prometheus.Gauge

	mu      sync.Mutex
	groups  map[string]bool
	reports map[string]fence.Token // by group: the newest report of a sink that was counted
	healthy bool
}

func newMetrics(s *Service) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(), groups: make(map[string]bool), reports: make(map[string]fence.Token),
		toElect: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tenure_time_to_elect_seconds", Help: "How long groups had no leader, where this instance saw both ends: a vacancy too short for the watch is not counted.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 18)}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tenure_leader_changes_total", Help: "Terms that began, as this instance saw it; groups beyond the first 500 share the label \"other\"."}, []string{"group"}),
		renewFailure: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tenure_renew_failures_total", Help: "Renewals and keep-alives that failed."}, []string{"reason"}),
		splitBrain: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tenure_split_brain_detected_total", Help: "Groups seen with a lower token after a higher one, and reports of sinks that saw a token which contradicts the newest grant: the engine was restored from a backup, or is broken."}),
		duplicates: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tenure_duplicate_node_ids_total", Help: "Times a process was met whose node id another living session uses for the same group."}),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tenure_request_seconds", Help: "How long requests took that were not held open.", Buckets: prometheus.ExponentialBuckets(0.00025, 2, 16)}, []string{"route", "code"}),
		engineTook: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tenure_keepalive_seconds", Help: "How long the engine took to answer keep-alives and changes.", Buckets: prometheus.ExponentialBuckets(0.00025, 2, 16)}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tenure_streams", Help: "Streams that are open."}),
		quorum: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tenure_store_quorum_health", Help: "1 if the engine answered the last call, 0 if it did not."}),
	}
	for _, reason := range metric.RenewReasons() {
		m.renewFailure.WithLabelValues(reason)
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	denials := func(reason string, f func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "tenure_denials_total", Help: "Requests that were refused at the gate.", ConstLabels: prometheus.Labels{"reason": reason}}, f)
	}
	m.registry.MustRegister(m.toElect, m.changes, m.renewFailure, m.splitBrain, m.duplicates, m.requests, m.engineTook, m.streams, m.quorum,
		gauge("tenure_groups", "Groups that have had a leader.", func() float64 { n, _ := s.feed.Counts(); return float64(n) }),
		gauge("tenure_groups_without_leader", "Those of them that have none now.", func() float64 { _, n := s.feed.Counts(); return float64(n) }),
		gauge("tenure_audit_waiting", "Entries of the audit that could not be written yet.", func() float64 { return float64(s.gate.Stats().AuditWaiting) }),
		denials("unauthenticated", func() float64 { return float64(s.gate.Stats().Unauthenticated) }),
		denials("denied", func() float64 { return float64(s.gate.Stats().Denied) }),
		denials("limited", func() float64 { return float64(s.gate.Stats().Limited) }),
		denials("busy", func() float64 { return float64(s.gate.Stats().Busy) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "tenure_audit_lost_total", Help: "Entries of the audit that were lost."},
			func() float64 { return float64(s.gate.Stats().AuditLost) }),
		&roles{m, s},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Timeout: 10 * time.Second, MaxRequestsInFlight: 4})
}

// label bounds how many groups there are to a scraper.
func (m *metrics) label(group string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.groups[group] || len(m.groups) < labelled {
		m.groups[group] = true
		return group
	}
	return otherGroups
}

// changed counts a change that the feed brings.
func (m *metrics) changed(v lease.View, terms int, vacant time.Duration, back bool) {
	if back {
		m.splitBrain.Inc()
	}
	if terms > 0 {
		m.changes.WithLabelValues(m.label(v.Group)).Add(float64(terms))
	}
	if vacant > 0 {
		m.toElect.Observe(vacant.Seconds())
	}
}

// suspected counts a report of a sink that the engine believes, once.
func (m *metrics) suspected(group string, seen fence.Token) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reports[group] == seen {
		return
	}
	if len(m.reports) >= labelled {
		clear(m.reports)
	}
	m.reports[group] = seen
	m.splitBrain.Inc()
}

// roles says at each scrape who leads which group and what each node does.
type roles struct {
	m *metrics
	s *Service
}

var (
	groupLeader = prometheus.NewDesc("tenure_group_leader", "1 for the node that leads a group, 0 without one; groups without a label of their own are counted as \"other\" while they are led.", []string{"group", "leader_node_id"}, nil)
	nodeRole    = prometheus.NewDesc("tenure_node_role", "1 for the role of each node: leader of a group at least, or candidate; nodes beyond the first 500 are counted as \"other\".", []string{"node_id", "role"}, nil)
)

// Describe implements prometheus.Collector.
func (r *roles) Describe(to chan<- *prometheus.Desc) {
	to <- groupLeader
	to <- nodeRole
}

// Collect implements prometheus.Collector.
func (r *roles) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	leaders, nodes := r.s.feed.Leaders()
	others, rest := 0, make(map[string]int)
	for _, group := range slices.Sorted(maps.Keys(leaders)) {
		node, led := leaders[group], 0
		if node != "" {
			led = 1
		}
		if r.m.label(group) == group {
			gauge(groupLeader, led, group, node)
		} else {
			others += led
		}
	}
	if others > 0 {
		gauge(groupLeader, others, otherGroups, otherGroups)
	}
	r.s.sessions.mu.Lock()
	for node := range r.s.sessions.nodes {
		nodes[node] += 0
	}
	r.s.sessions.mu.Unlock()
	for i, node := range slices.Sorted(maps.Keys(nodes)) {
		role := "candidate"
		if nodes[node] > 0 {
			role = "leader"
		}
		if i < labelled {
			gauge(nodeRole, 1, node, role)
		} else {
			rest[role]++
		}
	}
	for role, n := range rest {
		gauge(nodeRole, n, otherGroups, role)
	}
}

// sight hears whether the engine can be watched.
func (m *metrics) sight(err error) { m.engine(err) }

func (m *metrics) read(_ time.Duration, err error) { m.engine(err) }

func (m *metrics) engineCall(took time.Duration, err error) {
	m.engineTook.Observe(took.Seconds())
	m.engine(err)
}

// engine notes whether the engine answered: a definite no is an answer.
func (m *metrics) engine(err error) {
	ok := err == nil || lease.Definite(err)
	m.mu.Lock()
	m.healthy = ok
	m.mu.Unlock()
	if ok {
		m.quorum.Set(1)
	} else {
		m.quorum.Set(0)
	}
}

func (m *metrics) reachable() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.healthy
}

func (m *metrics) renewFailed(err error) {
	reason := metric.RenewReason(err)
	var p *httpapi.Problem
	if errors.As(err, &p) {
		switch {
		case p.Code == "not_leader":
			reason = metric.NotLeader
		case p.Status == http.StatusForbidden:
			reason = metric.Denied
		default:
			reason = metric.Other
		}
	}
	m.renewFailure.WithLabelValues(reason).Inc()
}

// server returns what is told how each request of a route went.
func (m *metrics) server(route string) func(status int, took time.Duration) {
	usual := sync.OnceValue(func() prometheus.Observer { return m.requests.WithLabelValues(route, "200") })
	return func(status int, took time.Duration) {
		if status == http.StatusOK {
			usual().Observe(took.Seconds())
			return
		}
		m.requests.WithLabelValues(route, strconv.Itoa(status)).Observe(took.Seconds())
	}
}
