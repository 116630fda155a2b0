// Package metrics has the metrics of one instance of the service.
package metrics

import (
	"errors"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/metric"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/store"
)

// Labelled is how many groups, and nodes, have a label of their own. The others share one.
const Labelled = 500

const otherGroups = "other"

// Source is where the collectors read.
type Source struct {
	// Gate has the numbers of the gate.
	Gate func() auth.Stats
	// Policies yields the policies of all groups.
	Policies iter.Seq2[operator.Policy, error]
	// Leaders returns the leader of each group, "" if it has none, and how many groups each node
	// leads; 0 for a node that is only a candidate.
	Leaders func() (leaders map[string]string, nodes map[string]int)
}

// Metrics are those of one instance.
type Metrics struct {
	// Streams are open streams. Duplicates counts processes that use the node id of another.
	Streams    prometheus.Gauge
	Duplicates prometheus.Counter

	registry     *prometheus.Registry
	toElect      prometheus.Histogram
	changes      *prometheus.CounterVec
	renewFailure *prometheus.CounterVec
	splitBrain   prometheus.Counter
	ended        *prometheus.CounterVec
	requests     *prometheus.HistogramVec
	engineTook   prometheus.Histogram

	healthy atomic.Bool

	mu      sync.Mutex
	groups  map[string]bool
	reports map[string]fence.Token // by group: the newest report of a sink that was counted
}

// New registers the metrics.
func New(from Source) *Metrics {
	registry := prometheus.NewRegistry()
	made := promauto.With(registry)
	counter := func(name, help string) prometheus.CounterOpts { return prometheus.CounterOpts{Name: name, Help: help} }
	histogram := func(name, help string, from float64, buckets int) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(from, 2, buckets)}
	}
	m := &Metrics{
		registry: registry, groups: make(map[string]bool), reports: make(map[string]fence.Token),
		toElect:      made.NewHistogram(histogram("tenure_time_to_elect_seconds", "How long groups had no leader, if this instance saw both ends. Vacancies too short for the watch are not counted.", 0.001, 18)),
		changes:      made.NewCounterVec(counter("tenure_leader_changes_total", "Terms that began, as this instance saw them. Groups beyond the first 500 share the label \"other\"."), []string{"group"}),
		renewFailure: made.NewCounterVec(counter("tenure_renew_failures_total", "Renewals and keep-alives that failed."), []string{"reason"}),
		splitBrain:   made.NewCounter(counter("tenure_split_brain_detected_total", "Groups seen with a lower token after a higher one, and reports of sinks that saw a token which contradicts the newest grant. The engine was restored from a backup, or is broken.")),
		ended:        made.NewCounterVec(counter("tenure_sessions_ended_early_total", "Sessions that ended before their TTL because their process has died (died), or probably has and is fenced (suspected), as this instance saw them."), []string{"reason"}),
		Duplicates:   made.NewCounter(counter("tenure_duplicate_node_ids_total", "Processes whose node id another living session uses for the same group.")),
		requests:     made.NewHistogramVec(histogram("tenure_request_seconds", "How long requests took that were not held open.", 0.00025, 16), []string{"route", "code"}),
		engineTook:   made.NewHistogram(histogram("tenure_keepalive_seconds", "How long the engine took to answer keep-alives and changes.", 0.00025, 16)),
		Streams:      made.NewGauge(prometheus.GaugeOpts{Name: "tenure_streams", Help: "Open streams."}),
	}
	for _, reason := range metric.RenewReasons() {
		m.renewFailure.WithLabelValues(reason)
	}
	for _, reason := range []store.Reason{store.Died, store.Suspected} {
		m.ended.WithLabelValues(string(reason))
	}
	gauge := func(name, help string, f func() int) {
		made.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(f()) })
	}
	gauge("tenure_store_quorum_health", "1 if the engine answered the last call, 0 if it did not.", func() int {
		if m.healthy.Load() {
			return 1
		}
		return 0
	})
	gauge("tenure_audit_waiting", "Audit entries that are not written yet.", func() int { return from.Gate().AuditWaiting })
	counted := func(opts prometheus.CounterOpts, f func(auth.Stats) uint64) {
		made.NewCounterFunc(opts, func() float64 { return float64(f(from.Gate())) })
	}
	denials := func(reason string, f func(auth.Stats) uint64) {
		opts := counter("tenure_denials_total", "Requests that the gate refused.")
		opts.ConstLabels = prometheus.Labels{"reason": reason}
		counted(opts, f)
	}
	denials("unauthenticated", func(s auth.Stats) uint64 { return s.Unauthenticated })
	denials("denied", func(s auth.Stats) uint64 { return s.Denied })
	denials("limited", func(s auth.Stats) uint64 { return s.Limited })
	denials("busy", func(s auth.Stats) uint64 { return s.Busy })
	counted(counter("tenure_audit_lost_total", "Audit entries that were lost."), func(s auth.Stats) uint64 { return s.AuditLost })
	registry.MustRegister(&roles{m: m, from: from}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Timeout: 10 * time.Second, MaxRequestsInFlight: 4})
}

// label bounds the number of group labels.
func (m *Metrics) label(group string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.groups[group] || len(m.groups) < Labelled {
		m.groups[group] = true
		return group
	}
	return otherGroups
}

// SessionEnded counts the end of a session by proof or hint.
func (m *Metrics) SessionEnded(why store.Reason) {
	if why == store.Died || why == store.Suspected {
		m.ended.WithLabelValues(string(why)).Inc()
	}
}

// Changed counts a change from the feed.
func (m *Metrics) Changed(v store.View, terms int, vacant time.Duration, back bool) {
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

// Suspected counts a report of a sink that the engine accepted, once.
func (m *Metrics) Suspected(group string, seen fence.Token) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reports[group] == seen {
		return
	}
	if len(m.reports) >= Labelled {
		clear(m.reports)
	}
	m.reports[group] = seen
	m.splitBrain.Inc()
}

// forget removes the series of a group that was deleted.
func (m *Metrics) forget(group string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.groups, group)
	m.changes.DeleteLabelValues(group)
}

// roles collects who leads each group and the role of each node.
type roles struct {
	m    *Metrics
	from Source

	mu       sync.Mutex
	policies map[string]operator.Policy // those that matter here, as read last
}

// read reads the policies of deleted groups and of groups that may be vacant. If the engine
// does not answer, those that were read last apply.
func (r *roles) read() map[string]operator.Policy {
	found := make(map[string]operator.Policy)
	for p, err := range r.from.Policies {
		if err != nil {
			found = nil
			break
		}
		if p.Deleted || p.MayBeVacant {
			found[p.Group()] = p
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if found != nil {
		r.policies = found
	}
	return r.policies
}

var (
	groupsLed   = prometheus.NewDesc("tenure_groups", "Groups that have had a leader and were not deleted.", nil, nil)
	groupsEmpty = prometheus.NewDesc("tenure_groups_without_leader", "Groups that have had a leader, have none now, and should have one: not those whose policy says may_be_vacant.", nil, nil)
	groupLeader = prometheus.NewDesc("tenure_group_leader", "1 for the node that leads a group, 0 if it has no leader. Groups without a label of their own are counted as \"other\" while they are led.", []string{"group", "leader_node_id"}, nil)
	nodeRole    = prometheus.NewDesc("tenure_node_role", "1 for the role of each node: leader (of at least one group) or candidate. Nodes beyond the first 500 are counted as \"other\".", []string{"node_id", "role"}, nil)
)

// Describe implements prometheus.Collector.
func (r *roles) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{groupsLed, groupsEmpty, groupLeader, nodeRole} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (r *roles) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	policies := r.read()
	leaders, nodes := r.from.Leaders()
	others, empty, rest := 0, 0, make(map[string]int)
	for _, group := range slices.Sorted(maps.Keys(leaders)) {
		node, led := leaders[group], 0
		switch p := policies[group]; {
		case node != "":
			led = 1
		case p.Deleted:
			delete(leaders, group)
			r.m.forget(group)
			continue
		case !p.MayBeVacant:
			empty++
		}
		if r.m.label(group) == group {
			gauge(groupLeader, led, group, node)
		} else {
			others += led
		}
	}
	gauge(groupsLed, len(leaders))
	gauge(groupsEmpty, empty)
	if others > 0 {
		gauge(groupLeader, others, otherGroups, otherGroups)
	}
	for i, node := range slices.Sorted(maps.Keys(nodes)) {
		role := "candidate"
		if nodes[node] > 0 {
			role = "leader"
		}
		if i < Labelled {
			gauge(nodeRole, 1, node, role)
		} else {
			rest[role]++
		}
	}
	for role, n := range rest {
		gauge(nodeRole, n, otherGroups, role)
	}
}

// EngineCall notes a call to the engine.
func (m *Metrics) EngineCall(took time.Duration, err error) {
	m.engineTook.Observe(took.Seconds())
	m.EngineAnswered(err)
}

// EngineAnswered notes whether the engine answered. A definite error is an answer.
func (m *Metrics) EngineAnswered(err error) { m.healthy.Store(err == nil || store.Definite(err)) }

// Healthy reports whether the engine answered the last call.
func (m *Metrics) Healthy() bool { return m.healthy.Load() }

// RenewFailed counts a renewal or keep-alive that failed.
func (m *Metrics) RenewFailed(err error) {
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

// Requests returns a function that records the requests of a route.
func (m *Metrics) Requests(route string) func(status int, took time.Duration) {
	usual := sync.OnceValue(func() prometheus.Observer { return m.requests.WithLabelValues(route, "200") })
	return func(status int, took time.Duration) {
		if status == http.StatusOK {
			usual().Observe(took.Seconds())
			return
		}
		m.requests.WithLabelValues(route, strconv.Itoa(status)).Observe(took.Seconds())
	}
}
