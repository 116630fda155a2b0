//go:build planted

package mem

import (
	"testing"

	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/internal/plant"
)

// A guard that looks at the rules only when a call arrives is caught.
func TestGuardPlanted(t *testing.T) {
	for name, o := range guardModes() {
		t.Run(name, func(t *testing.T) {
			wrong := againstCordon(t, o, guard.Config{Plant: plant.Of(plant.GuardStale)})
			if len(wrong) == 0 {
				t.Error("not caught")
			}
			for _, w := range wrong {
				t.Log("caught: " + w)
			}
		})
	}
}
