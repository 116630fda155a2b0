//go:build planted

package sim

import (
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
)

func guardConfig(p plant.Set) lease.GuardConfig {
	if p.Has(plant.GuardStale) {
		return lease.GuardConfig{}.Planted(plant.GuardStale)
	}
	return lease.GuardConfig{}
}
