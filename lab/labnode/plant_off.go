//go:build !planted

package labnode

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/lease"
)

// Lease implements node.Hooks. This build has no bugs to plant.
func (h *Hooks) Lease(cfg lease.Config) lease.Config { return cfg }

// byWallClock is false: this build measures on a clock that does not jump.
func (c Config) byWallClock() bool { return false }

// stopDelay is how long a leader continues after it was told to stop.
func (c Config) stopDelay() time.Duration { return c.StopDelay }

func plantFlag(*pflag.FlagSet, *Config) {}
