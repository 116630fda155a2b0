package electortest_test

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/electortest"
)

// The test of an engine's elector.
func ExampleRun() {
	// start starts a process for the group that can be crashed, paused and cut off.
	var start func(t *testing.T, group, id string) electortest.Process

	_ = func(t *testing.T) { // func TestElector(t *testing.T)
		electortest.Run(t, electortest.Engine{
			Start:    start,
			Lease:    4 * time.Second,
			Failover: 6 * time.Second,
			Transfer: true,
		})
	}
}
