//go:build !planted

package sim

import (
	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/internal/plant"
)

func guardConfig(plant.Set) guard.Config { return guard.Config{} }
