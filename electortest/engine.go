package electortest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
)

// Process is one candidate of one group, as a process of its own or as good as
// that. Faults may be set and mended more than once, and in any order.
type Process interface {
	// Elector stands for the process in its group.
	Elector() tenure.Elector
	// Crash ends the process without a word to the engine. Campaigns that wait in
	// it fail. Close may still be called.
	Crash()
	// Pause freezes the process: it sends nothing and is told nothing, while time
	// goes on. Term.Check can still be called: it stands for the first thing that
	// the process does when it wakes up.
	Pause()
	// Resume ends the pause.
	Resume()
	// Partition cuts the process off from the engine, both ways, without an error
	// that could warn it.
	Partition()
	// Heal ends the partition.
	Heal()
	// Close ends the process in order.
	Close(ctx context.Context) error
}

// Engine is what is tested.
type Engine struct {
	// Start starts a process that stands for a group as candidate id. The
	// processes of one group share an engine; each case has a group of its own,
	// and at most the candidates a, b and c. A process that cannot be started is
	// t.Fatal.
	Start func(t *testing.T, group, id string) Process
	// Lease bounds how long a leader that is cut off goes on believing: its TTL,
	// or what corresponds to it.
	Lease time.Duration
	// Failover bounds the time from the crash of a leader to the next one's term,
	// and so from anything gentler. It is longer than Lease.
	Failover time.Duration
	// Transfer says that a term can be handed to a named candidate.
	Transfer bool
	// Parallel lets the cases run at the same time.
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
