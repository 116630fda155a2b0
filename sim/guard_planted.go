//go:build planted

package sim

import (
	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/internal/plant"
)

func guardConfig(p plant.Set) guard.Config {
	if p.Has(plant.GuardStale) {
		return guard.Config{Plant: plant.Of(plant.GuardStale)}
	}
	return guard.Config{}
}
