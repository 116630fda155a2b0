package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenurehq/tenure/reference/scheduler"
)

// schedulerCheckpoint is written with every tick, so it dates the last.
const schedulerCheckpoint = scheduler.Checkpoint

func (n *Node) newScheduler() (*scheduler.Scheduler, error) {
	group := prometheus.Labels{"group": n.cfg.Group}
	ticks := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "tenure_fleet_tick_late_seconds", Help: "How long after its instant a tick was written.", ConstLabels: group, Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)})
	fired := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "tenure_fleet_firing_late_seconds", Help: "How long after its instant a firing was recorded.", ConstLabels: group, Buckets: prometheus.ExponentialBuckets(0.001, 2, 22)})
	skipped := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tenure_fleet_misfires_skipped_total", Help: "Jobs whose misfires were left out.", ConstLabels: group})
	dispatched := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tenure_fleet_dispatched_total", Help: "Firings that were sent to workers, by outcome.", ConstLabels: group}, []string{"outcome"})
	n.metrics.registry.MustRegister(ticks, fired, skipped, dispatched)
	s, err := scheduler.New(scheduler.Config{
		Ledger: n.ledger, Resource: n.cfg.Group, Tick: n.cfg.Tick, Grace: n.cfg.MisfireGrace, Workers: n.cfg.Workers, Clock: n.clock, Log: n.cfg.Log,
		Metrics: scheduler.Metrics{
			Tick:    func(late time.Duration) { ticks.Observe(late.Seconds()) },
			Fired:   func(late time.Duration) { fired.Observe(late.Seconds()) },
			Skipped: skipped.Inc,
			Dispatched: func(_ string, firings int, _ time.Duration, err error) {
				outcome := "ok"
				if err != nil {
					outcome = "failed"
				}
				dispatched.WithLabelValues(outcome).Add(float64(firings))
			},
		},
	})
	if err != nil {
		return nil, &ConfigError{"scheduler", err.Error()}
	}
	return s, nil
}
