//go:build planted

package lease

import "github.com/tenurehq/tenure/internal/plant"

// Planted returns the configuration with bugs in it, for experiments that must see
// them. Only the planted build has it.
func (c Config) Planted(bugs ...plant.Bug) Config {
	c.planted = plant.Of(bugs...)
	return c
}
