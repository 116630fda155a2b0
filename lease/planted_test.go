//go:build planted

package lease_test

import (
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
)

// Each bug in what follows a loss of data is seen by TestDataLoss.
func TestDataLossPlanted(t *testing.T) {
	for _, bug := range []plant.Bug{plant.RetryStaleSeal, plant.EqualTokenSeal} {
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
