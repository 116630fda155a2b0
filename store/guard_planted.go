//go:build planted

package store

import "github.com/tenurehq/tenure/internal/plant"

// Planted returns the configuration with bugs in it.
func (c GuardConfig) Planted(bugs ...plant.Bug) GuardConfig {
	c.planted = plant.Of(bugs...)
	return c
}
