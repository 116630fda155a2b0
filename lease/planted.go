//go:build planted

package lease

import "github.com/tenurehq/tenure/internal/plant"

// Planted returns the configuration with planted bugs, for experiments that must
// detect them. Only the planted build has it.
func (c Config) Planted(bugs ...plant.Bug) Config {
	c.planted = plant.Of(bugs...)
	return c
}
