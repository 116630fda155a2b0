package scheduler

import (
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
)

// Status is the state of a scheduler. Counts are since the start of the process.
type Status struct {
	// Leading: it ticks, under Token.
	Leading bool        `json:"leading"`
	Token   fence.Token `json:"token,omitempty"`
	// JobsPending is how many jobs the group has, as far as this node knows.
	JobsPending uint64 `json:"jobs_pending"`
	// WindowJobs of them are in memory: all that are due before WindowMS.
	WindowJobs int   `json:"window_jobs"`
	WindowMS   int64 `json:"window_ms"`

	// Tick is the number in the ledger of the last tick, TickMS its instant, and
	// TickLateMS how much later it was written.
	Tick       uint64 `json:"tick"`
	TickMS     int64  `json:"tick_ms"`
	TickLateMS int64  `json:"tick_late_ms"`
	// TicksMissed counts instants at which nobody ticked.
	TicksMissed int64 `json:"ticks_missed"`

	Fired uint64 `json:"fired"`
	// LateMS is the largest delay of a firing in the last tick, LateMaxMS the largest of all.
	LateMS    int64 `json:"late_ms"`
	LateMaxMS int64 `json:"late_max_ms"`
	// Duplicates had been fired before, Moved had been moved by another leader, Skipped were
	// misfires, Unreadable had an invalid schedule.
	Duplicates uint64 `json:"duplicates"`
	Moved      uint64 `json:"moved"`
	Skipped    uint64 `json:"skipped"`
	Unreadable uint64 `json:"unreadable"`

	// Dispatched were acknowledged by a worker. Outbox are not delivered, or not recorded as
	// delivered.
	Dispatched uint64 `json:"dispatched"`
	Outbox     int    `json:"outbox"`
	// Error is the error of the last tick, if there was one.
	Error string `json:"error,omitempty"`
}

// counters are a Status that several goroutines change.
type counters struct {
	mu      sync.Mutex
	s       Status
	metrics Metrics
}

func (c *counters) change(f func(*Status)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.s)
}

func (c *counters) dispatched(worker string, firings int, took time.Duration, err error) {
	if err == nil {
		c.change(func(s *Status) { s.Dispatched += uint64(firings) })
	}
	if c.metrics.Dispatched != nil {
		c.metrics.Dispatched(worker, firings, took, err)
	}
}
