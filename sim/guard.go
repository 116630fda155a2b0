//go:build !planted

package sim

import (
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
)

func guardConfig(plant.Set) store.GuardConfig { return store.GuardConfig{} }
