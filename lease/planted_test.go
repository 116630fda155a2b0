//go:build planted

package lease_test

import (
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
)

// Each bug that is planted where the simulator does not look is seen by TestDataLoss.
func TestDataLossPlanted(t *testing.T) {
	for _, bug := range plant.Elsewhere() {
		t.Run(bug.String(), func(t *testing.T) {
			var wrong []string
			for _, token := range []fence.Token{5, 2, 1} {
				wrong = append(wrong, afterDataLoss(t, token, func(c *lease.Config) { *c = c.Planted(bug) })...)
			}
			if len(wrong) == 0 {
				t.Error("not caught")
			}
			for _, w := range wrong {
				t.Log("caught: " + w)
			}
		})
	}
}
