package node

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/server/metric"
)

// metrics are kept per node, not per process.
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
}

func newMetrics(n *Node) *metrics {
	group := prometheus.Labels{"group": n.cfg.Group}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: group})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: group}, []string{label})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: group, Buckets: buckets})
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: group}, f)
	}
	seconds := prometheus.ExponentialBuckets(0.0002, 2, 17)
	m := &metrics{
		registry:  prometheus.NewRegistry(),
		terms:     counter("tenure_terms_total", "Terms of this node that began."),
		ends:      counters("tenure_terms_ended_total", "Terms of this node that ended, by reason.", "reason"),
		changes:   counter("tenure_leader_changes_total", "Changes of leader that this node saw."),
		keepalive: histogram("tenure_keepalive_seconds", "How long acknowledged keep-alives took.", seconds),
		renewals:  counters("tenure_renew_failures_total", "Keep-alives that failed, by reason.", "reason"),
		calls:     counters("tenure_engine_calls_total", "Calls of this node to the engine, by what was called.", "call"),
		elect:     histogram("tenure_time_to_elect_seconds", "From when the end of a term was seen here until a term of this node began.", prometheus.ExponentialBuckets(0.00025, 2, 18)),
		health:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "tenure_store_quorum_health", Help: "1 while the engine answers, 0 while it cannot be seen.", ConstLabels: group}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tenure_fence_rejected_total", Help: "Writes of this node that were refused, by reason.", ConstLabels: group}, []string{"sink", "reason"}),
		writes:  counters("tenure_fleet_writes_total", "Writes of this node as a leader, by outcome: ok, refused, unknown, failed.", "outcome"),
		writing: histogram("tenure_fleet_write_seconds", "How long a write of the leader took.", seconds),
		callers: histogram("tenure_fleet_batch_callers", "Callers of /next that shared a write.", prometheus.ExponentialBuckets(1, 2, 14)),
		batches: counters("tenure_fleet_batches_total", "Writes of the sequencer, by outcome: ok, refused, unknown, failed.", "outcome"),
		numbers: counter("tenure_fleet_numbers_total", "Numbers that were handed out."),
		phases: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tenure_failover_phase_seconds", Help: "The last failover that made this node the leader, by phase.", ConstLabels: group}, []string{"phase"}),
		over: counters("tenure_failover_over_total", "Phases of failovers that outgrew their share of the target.", "phase"),
		gaps: histogram("tenure_handover_gap_seconds", "After a handover in order: from the old leader's last attempt to write to the new one's first.", prometheus.ExponentialBuckets(0.0005, 2, 16)),
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
	for _, s := range shares {
		m.over.WithLabelValues(s.phase)
	}
	m.registry.MustRegister(m.terms, m.ends, m.changes, m.keepalive, m.renewals, m.calls, m.elect, m.health, m.rejected, m.writes, m.writing, m.callers,
		m.batches, m.numbers, m.phases, m.over, m.gaps,
		gauge("tenure_is_leader", "1 while this node may trust that it leads.", func() float64 {
			if t := n.term.Load(); t != nil && t.Remaining() > 0 {
				return 1
			}
			return 0
		}),
		gauge("tenure_token", "The token of the newest term that this node knows of.", func() float64 { return float64(n.token()) }),
		gauge("tenure_trust_remaining_seconds", "How long this node may still trust its term.", func() float64 {
			if t := n.term.Load(); t != nil {
				return t.Remaining().Seconds()
			}
			return 0
		}),
		gauge("tenure_ttl_seconds", "How long this node's lease lasts without a beat; of Raft, its heartbeat timeout.", func() float64 { return n.cfg.ttl().Seconds() }),
		gauge("tenure_pause_max_seconds", "The longest pause of this process: a TTL must be longer.", func() float64 { return n.pauses.longest().Seconds() }),
		gauge("tenure_pause_scheduling_max_seconds", "The longest that a goroutine of this process overslept.", func() float64 { return time.Duration(n.pauses.slept.Load()).Seconds() }),
		gauge("tenure_pause_gc_max_seconds", "The longest stop of the garbage collector.", func() float64 { return time.Duration(n.pauses.stopped.Load()).Seconds() }),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// note takes what the lease's machine did.
func (m *metrics) note(n lease.Note) {
	switch n.Kind {
	case lease.NoteBeat:
		m.keepalive.Observe(n.Took.Seconds())
	case lease.NoteMissed:
		m.renewals.WithLabelValues(metric.RenewReason(n.Err)).Inc()
	}
}

func (m *metrics) quorum(ok bool) {
	if ok {
		m.health.Set(1)
	} else {
		m.health.Set(0)
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

// ending is a word for why a term ended.
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

// outcome is a word for how a write ended.
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
