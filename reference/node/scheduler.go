package node

import (
	"time"

	"github.com/tenurehq/tenure/reference/scheduler"
)

func (n *Node) newScheduler() (*scheduler.Scheduler, error) {
	m := n.metrics
	s, err := scheduler.New(scheduler.Config{
		Ledger: n.ledger, Resource: n.cfg.Group, Tick: n.cfg.Tick, Grace: n.cfg.MisfireGrace, Workers: n.cfg.Workers, Clock: n.clock, Log: n.cfg.Log,
		Metrics: scheduler.Metrics{
			Tick:    func(late time.Duration) { m.ticks.Observe(late.Seconds()) },
			Fired:   func(late time.Duration) { m.fired.Observe(late.Seconds()) },
			Skipped: m.skipped.Inc,
			Dispatched: func(_ string, firings int, _ time.Duration, err error) {
				m.sent.WithLabelValues(map[bool]string{true: "ok", false: "failed"}[err == nil]).Add(float64(firings))
			},
		},
	})
	if err != nil {
		return nil, &ConfigError{"scheduler", err.Error()}
	}
	return s, nil
}
