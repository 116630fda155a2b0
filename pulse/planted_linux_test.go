//go:build planted

package pulse

import (
	"testing"

	"github.com/tenurehq/tenure/internal/plant"
)

// Every bug ends the session of a living process.
func TestPlanted(t *testing.T) {
	for name, c := range living {
		if c.bug == plant.None {
			continue
		}
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.stop()
			b.plant = plant.Of(c.bug)
			b.keeper()
			if id := c.play(b); !b.died(id, patience) {
				t.Error("the bug was not caught")
			}
		})
	}
}
