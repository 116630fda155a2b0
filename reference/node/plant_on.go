//go:build planted

package node

import (
	"slices"
	"time"

	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
)

// planted puts the bugs in.
func (c Config) planted(cfg lease.Config) lease.Config { return cfg.Planted(c.Plant...) }

// byWallClock: what a node measures it measures on the wall clock.
func (c Config) byWallClock() bool { return slices.Contains(c.Plant, plant.WallClock) }

// slowly is how long a leader goes on after it was told to stop. One that gives the
// group up before its work has stopped does harm only if that takes a moment.
func (c Config) slowly() time.Duration {
	if c.StopDelay == 0 && slices.Contains(c.Plant, plant.ReleaseBeforeStop) {
		return 50 * time.Millisecond
	}
	return c.StopDelay
}
