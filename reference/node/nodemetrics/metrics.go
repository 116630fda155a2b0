// Package nodemetrics has the metrics of a node.
package nodemetrics

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node/failover"
	"github.com/tenurehq/tenure/reference/node/pause"
	"github.com/tenurehq/tenure/reference/scheduler"
	"github.com/tenurehq/tenure/server/metric"
)

// Metrics are those of one node.
type Metrics struct {
	Registry  *prometheus.Registry
	terms     prometheus.Counter
	ends      *prometheus.CounterVec
	Changes   prometheus.Counter
	keepalive prometheus.Histogram
	renewals  *prometheus.CounterVec
	Calls     *prometheus.CounterVec
	elect     prometheus.Histogram
	Health    prometheus.Gauge
	rejected  *prometheus.CounterVec
	writes    *prometheus.CounterVec
	writing   prometheus.Histogram
	callers   prometheus.Histogram
	batches   *prometheus.CounterVec
	numbers   prometheus.Counter
	phases    *prometheus.GaugeVec
	over      *prometheus.CounterVec
	gaps      prometheus.Histogram

	// Of the scheduler.
	ticks, fired prometheus.Histogram
	skipped      prometheus.Counter
	sent         *prometheus.CounterVec
}

// Node is what the gauges show of a node.
type Node interface {
	Term() *tenure.Term
	Token() fence.Token
}

// New returns the metrics of a node of a group.
func New(group string, n Node, ttl time.Duration, pauses *pause.Meter) *Metrics {
	registry := prometheus.NewRegistry()
	// Every metric has the label group.
	auto := promauto.With(prometheus.WrapRegistererWith(prometheus.Labels{"group": group}, registry))
	counter := func(name, help string) prometheus.Counter {
		return auto.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return auto.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return auto.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	gauge := func(name, help string, f func() float64) {
		auto.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	seconds, exponential := prometheus.ExponentialBuckets(0.0002, 2, 17), prometheus.ExponentialBuckets
	m := &Metrics{
		Registry:  registry,
		terms:     counter("tenure_terms_total", "Terms of this node that began."),
		ends:      counters("tenure_terms_ended_total", "Terms of this node that ended, by reason.", "reason"),
		Changes:   counter("tenure_leader_changes_total", "Changes of leader that this node saw."),
		keepalive: histogram("tenure_keepalive_seconds", "Duration of acknowledged keep-alives.", seconds),
		renewals:  counters("tenure_renew_failures_total", "Keep-alives that failed, by reason.", "reason"),
		Calls:     counters("tenure_engine_calls_total", "Calls of this node to the engine, by what was called.", "call"),
		elect:     histogram("tenure_time_to_elect_seconds", "Time from when this node saw the end of a term until a term of this node began.", exponential(0.00025, 2, 18)),
		Health:    auto.NewGauge(prometheus.GaugeOpts{Name: "tenure_store_quorum_health", Help: "1 while the engine answers, 0 while it does not."}),
		rejected:  counters("tenure_fence_rejected_total", "Writes of this node that were refused, by reason.", "sink", "reason"),
		writes:    counters("tenure_fleet_writes_total", "Writes of this node as a leader, by outcome: ok, refused, unknown, failed.", "outcome"),
		writing:   histogram("tenure_fleet_write_seconds", "Duration of a write of the leader.", seconds),
		callers:   histogram("tenure_fleet_batch_callers", "Callers of /next that shared a write.", exponential(1, 2, 14)),
		batches:   counters("tenure_fleet_batches_total", "Writes of the sequencer, by outcome: ok, refused, unknown, failed.", "outcome"),
		numbers:   counter("tenure_fleet_numbers_total", "Numbers that were handed out."),
		phases:    auto.NewGaugeVec(prometheus.GaugeOpts{Name: "tenure_failover_phase_seconds", Help: "The last failover that made this node the leader, by phase."}, []string{"phase"}),
		over:      counters("tenure_failover_over_total", "Phases of failovers that took longer than their share of the target.", "phase"),
		gaps:      histogram("tenure_handover_gap_seconds", "Time from the old leader's last attempt to write to the new leader's first, after a handover in order.", exponential(0.0005, 2, 16)),
		ticks:     histogram("tenure_fleet_tick_late_seconds", "How long after its instant a tick was written.", exponential(0.001, 2, 16)),
		fired:     histogram("tenure_fleet_firing_late_seconds", "How long after its instant a firing was recorded.", exponential(0.001, 2, 22)),
		skipped:   counter("tenure_fleet_misfires_skipped_total", "Jobs whose misfires were skipped."),
		sent:      counters("tenure_fleet_dispatched_total", "Firings that were sent to workers, by outcome.", "outcome"),
	}
	for _, r := range []string{"stale", "slip", "foreign", "clone", "invalid"} {
		m.rejected.WithLabelValues("ledger", r)
	}
	for _, o := range []string{"ok", "refused", "unknown", "failed"} {
		m.writes.WithLabelValues(o)
		m.batches.WithLabelValues(o)
	}
	for _, r := range metric.RenewReasons() {
		m.renewals.WithLabelValues(r)
	}
	for _, s := range failover.Shares {
		m.over.WithLabelValues(s.Phase)
	}
	remaining := func() time.Duration {
		if t := n.Term(); t != nil {
			return t.Remaining()
		}
		return 0
	}
	gauge("tenure_is_leader", "1 while this node may trust that it leads.", func() float64 { return Bool(remaining() > 0) })
	gauge("tenure_token", "The token of the newest term that this node knows.", func() float64 { return float64(n.Token()) })
	gauge("tenure_trust_remaining_seconds", "How long this node may still trust its term.", func() float64 { return remaining().Seconds() })
	gauge("tenure_ttl_seconds", "How long this node's lease lasts without a keep-alive; with Raft, its heartbeat timeout.", func() float64 { return ttl.Seconds() })
	gauge("tenure_pause_max_seconds", "The longest pause of this process. The TTL must be longer.", func() float64 { return pauses.Longest().Seconds() })
	gauge("tenure_pause_scheduling_max_seconds", "The longest that a goroutine of this process overslept.", func() float64 { return pauses.Overslept().Seconds() })
	gauge("tenure_pause_gc_max_seconds", "The longest stop of the garbage collector.", func() float64 { return pauses.Collecting().Seconds() })
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Bool is 1 or 0.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Note counts what the elector reports.
func (m *Metrics) Note(n lease.Note) {
	switch n.Kind {
	case lease.NoteBeat:
		m.keepalive.Observe(n.Took.Seconds())
	case lease.NoteMissed:
		m.renewals.WithLabelValues(metric.RenewReason(n.Err)).Inc()
	}
}

// Began counts a term of this node that began.
func (m *Metrics) Began(electing time.Duration) {
	m.terms.Inc()
	m.elect.Observe(electing.Seconds())
}

// Ended counts a term of this node that ended.
func (m *Metrics) Ended(cause string) {
	if cause != "" {
		m.ends.WithLabelValues(cause).Inc()
	}
}

// Ending is why a term ended, as a label.
func Ending(cause error) string {
	for _, r := range []struct {
		err  error
		word string
	}{
		{tenure.ErrExpired, "expired"}, {tenure.ErrLost, "lost"}, {tenure.ErrTransferred, "transferred"},
		{tenure.ErrUnhealthy, "unhealthy"}, {tenure.ErrResigned, "resigned"},
	} {
		if errors.Is(cause, r.err) {
			return r.word
		}
	}
	return ""
}

// Outcome is how a write ended, as a label.
func Outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case ledgerapi.Reason(err) != "":
		return "refused"
	case errors.Is(err, ledgerapi.ErrUnknown):
		return "unknown"
	default:
		return "failed"
	}
}

// Attempted counts a write of the leader.
func (m *Metrics) Attempted(took time.Duration, err error) {
	m.writes.WithLabelValues(Outcome(err)).Inc()
	m.writing.Observe(took.Seconds())
	if r := ledgerapi.Reason(err); r != "" {
		m.rejected.WithLabelValues("ledger", r).Inc()
	}
}

// Wrote counts a write of the sequencer.
func (m *Metrics) Wrote(callers int, numbers uint64, _ time.Duration, err error) {
	m.batches.WithLabelValues(Outcome(err)).Inc()
	m.callers.Observe(float64(callers))
	if err == nil {
		m.numbers.Add(float64(numbers))
	}
}

// Phase counts a phase of a failover that ended.
func (m *Metrics) Phase(p api.Phase) {
	m.phases.WithLabelValues(p.Name).Set(float64(p.TookUS) / 1e6)
	if p.Over {
		m.over.WithLabelValues(p.Name).Inc()
	}
}

// Gap counts the time between two leaders.
func (m *Metrics) Gap(d time.Duration) { m.gaps.Observe(d.Seconds()) }

// Scheduler are the metrics of the scheduler.
func (m *Metrics) Scheduler() scheduler.Metrics {
	return scheduler.Metrics{
		Tick:    func(late time.Duration) { m.ticks.Observe(late.Seconds()) },
		Fired:   func(late time.Duration) { m.fired.Observe(late.Seconds()) },
		Skipped: m.skipped.Inc,
		Dispatched: func(_ string, firings int, _ time.Duration, err error) {
			m.sent.WithLabelValues(map[bool]string{true: "ok", false: "failed"}[err == nil]).Add(float64(firings))
		},
	}
}
