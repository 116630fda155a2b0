package electortest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
)

// Process is one candidate of one group, in a process of its own or simulated. Faults may be
// injected and healed more than once, and in any order.
type Process interface {
	// Elector returns the elector of the process for its group.
	Elector() tenure.Elector
	// Crash ends the process without a message to the engine. Its waiting campaigns fail.
	// Close may still be called.
	Crash()
	// Pause freezes the process: it sends and receives nothing, while time goes on. The
	// test still calls Term.Check, as the process would right after the pause.
	Pause()
	// Resume ends the pause.
	Resume()
	// Partition drops all messages between the process and the engine. Connections do not
	// report an error.
	Partition()
	// Heal ends the partition.
	Heal()
	// Close shuts the process down.
	Close(ctx context.Context) error
}

// Engine describes the engine under test.
type Engine struct {
	// Start starts a process that campaigns for a group as candidate id. The processes of
	// one group share an engine. Each case has its own group, with candidates a, b and c at
	// most. If the process cannot be started, it calls t.Fatal.
	Start func(t *testing.T, group, id string) Process
	// Lease bounds how long a partitioned leader believes: its TTL, or the equivalent.
	Lease time.Duration
	// Failover bounds the time from the crash of a leader to the next term, and so the time
	// of every other change of leader. It is longer than Lease.
	Failover time.Duration
	// Transfer says that the engine can transfer a term to a named candidate.
	Transfer bool
	// Parallel: cases may run concurrently.
	Parallel bool
}

func (e Engine) validate() error {
	switch {
	case e.Start == nil:
		return fmt.Errorf("electortest: Engine.Start is nil")
	case e.Lease <= 0:
		return fmt.Errorf("electortest: Engine.Lease is %v: must be positive", e.Lease)
	case e.Failover <= e.Lease:
		return fmt.Errorf("electortest: Engine.Failover is %v: must be longer than Lease, which is %v", e.Failover, e.Lease)
	}
	return nil
}

// Run tests the engine.
func Run(t *testing.T, e Engine) {
	t.Helper()
	if err := e.validate(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if tc.transfer && !e.Transfer {
				t.Skip("the engine says that it cannot transfer")
			}
			if e.Parallel {
				t.Parallel()
			}
			for _, failure := range examine(t, e, tc) {
				t.Errorf("%s: %s", tc.claim, failure)
			}
		})
	}
}
