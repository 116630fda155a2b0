//go:build !planted

package node

import (
	"time"

	"github.com/tenurehq/tenure/lease"
)

// planted returns the configuration as it is: this build has no bugs to plant.
func (c Config) planted(cfg lease.Config) lease.Config { return cfg }

// byWallClock is false: this build measures on a clock that does not jump.
func (c Config) byWallClock() bool { return false }

// slowly is how long a leader goes on after it was told to stop.
func (c Config) slowly() time.Duration { return c.StopDelay }
