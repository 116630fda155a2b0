//go:build planted

package sim

import (
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

func guardConfig(p plant.Set) store.GuardConfig {
	if p.Has(plant.GuardStale) {
		return store.GuardConfig{}.Planted(plant.GuardStale)
	}
	return store.GuardConfig{}
}
