package node

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node/failover"
	"github.com/tenurehq/tenure/server/metric"
)

// metrics are those of one node.
type metrics struct {
	registry  *prometheus.Registry
	terms     prometheus.Counter
	ends      *prometheus.CounterVec
	changes   prometheus.Counter
	keepalive prometheus.Histogram
	renewals  *prometheus.CounterVec
	calls     *prometheus.CounterVec
	elect     prometheus.Histogram
	health    prometheus.Gauge
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

func newMetrics(n *Node) *metrics {
	registry := prometheus.NewRegistry()
	// Every metric has the label group.
	auto := promauto.With(prometheus.WrapRegistererWith(prometheus.Labels{"group": n.Config.Group}, registry))
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
	m := &metrics{
		registry:  registry,
		terms:     counter("tenure_terms_total", "Terms of this node that began."),
		ends:      counters("tenure_terms_ended_total", "Terms of this node that ended, by reason.", "reason"),
		changes:   counter("tenure_leader_changes_total", "Changes of leader that this node saw."),
		keepalive: histogram("tenure_keepalive_seconds", "Duration of acknowledged keep-alives.", seconds),
		renewals:  counters("tenure_renew_failures_total", "Keep-alives that failed, by reason.", "reason"),
		calls:     counters("tenure_engine_calls_total", "Calls of this node to the engine, by what was called.", "call"),
		elect:     histogram("tenure_time_to_elect_seconds", "Time from when this node saw the end of a term until a term of this node began.", exponential(0.00025, 2, 18)),
		health:    auto.NewGauge(prometheus.GaugeOpts{Name: "tenure_store_quorum_health", Help: "1 while the engine answers, 0 while it does not."}),
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
		if t := n.term.Load(); t != nil {
			return t.Remaining()
		}
		return 0
	}
	gauge("tenure_is_leader", "1 while this node may trust that it leads.", func() float64 { return boolean(remaining() > 0) })
	gauge("tenure_token", "The token of the newest term that this node knows.", func() float64 { return float64(n.Token()) })
	gauge("tenure_trust_remaining_seconds", "How long this node may still trust its term.", func() float64 { return remaining().Seconds() })
	gauge("tenure_ttl_seconds", "How long this node's lease lasts without a keep-alive; with Raft, its heartbeat timeout.", func() float64 { return n.Config.ttl().Seconds() })
	gauge("tenure_pause_max_seconds", "The longest pause of this process. The TTL must be longer.", func() float64 { return n.pauses.Longest().Seconds() })
	gauge("tenure_pause_scheduling_max_seconds", "The longest that a goroutine of this process overslept.", func() float64 { return n.pauses.Overslept().Seconds() })
	gauge("tenure_pause_gc_max_seconds", "The longest stop of the garbage collector.", func() float64 { return n.pauses.Collecting().Seconds() })
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// note counts what the elector reports.
func (m *metrics) note(n lease.Note) {
	switch n.Kind {
	case lease.NoteBeat:
		m.keepalive.Observe(n.Took.Seconds())
	case lease.NoteMissed:
		m.renewals.WithLabelValues(metric.RenewReason(n.Err)).Inc()
	}
}

func (m *metrics) began(electing time.Duration) {
	m.terms.Inc()
	m.elect.Observe(electing.Seconds())
}

func (m *metrics) ended(cause string) {
	if cause != "" {
		m.ends.WithLabelValues(cause).Inc()
	}
}

// ending is why a term ended, as a label.
func ending(cause error) string {
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

// outcome is how a write ended, as a label.
func outcome(err error) string {
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

func (m *metrics) attempted(took time.Duration, err error) {
	m.writes.WithLabelValues(outcome(err)).Inc()
	m.writing.Observe(took.Seconds())
	if r := ledgerapi.Reason(err); r != "" {
		m.rejected.WithLabelValues("ledger", r).Inc()
	}
}

func (m *metrics) wrote(callers int, numbers uint64, _ time.Duration, err error) {
	m.batches.WithLabelValues(outcome(err)).Inc()
	m.callers.Observe(float64(callers))
	if err == nil {
		m.numbers.Add(float64(numbers))
	}
}

func (m *metrics) phase(p api.Phase) {
	m.phases.WithLabelValues(p.Name).Set(float64(p.TookUS) / 1e6)
	if p.Over {
		m.over.WithLabelValues(p.Name).Inc()
	}
}

func (m *metrics) gap(d time.Duration) { m.gaps.Observe(d.Seconds()) }
