package sim_test

import (
	"fmt"
	"time"

	"github.com/tenurehq/tenure/sim"
)

// One world. The same seed gives the same world.
func ExampleRun() {
	result := sim.Run(sim.Config{Seed: 1, Duration: time.Minute})
	fmt.Println("violation:", result.Violation)
	fmt.Println("stale writes that took effect at fenced sinks:", result.StaleFenced)
	// Output:
	// violation: <nil>
	// stale writes that took effect at fenced sinks: 0
}
