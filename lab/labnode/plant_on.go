//go:build planted

package labnode

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
)

// Lease implements node.Hooks: it plants the bugs.
func (h *Hooks) Lease(cfg lease.Config) lease.Config { return cfg.Planted(h.cfg.Plant...) }

// byWallClock: the lease is measured on the wall clock.
func (c Config) byWallClock() bool { return slices.Contains(c.Plant, plant.WallClock) }

// stopDelay is how long a leader continues after it was told to stop. A leader that releases
// the group before its work has stopped does harm only if stopping takes a moment.
func (c Config) stopDelay() time.Duration {
	if c.StopDelay == 0 && slices.Contains(c.Plant, plant.ReleaseBeforeStop) {
		return 50 * time.Millisecond
	}
	return c.StopDelay
}

func plantFlag(f *pflag.FlagSet, cfg *Config) {
	f.Func("plant", "bugs to plant in the lease, separated by commas", func(s string) error {
		cfg.Plant = nil
		for name := range strings.SplitSeq(s, ",") {
			i := slices.IndexFunc(plant.All(), func(b plant.Bug) bool { return b.String() == strings.TrimSpace(name) })
			if i < 0 {
				return fmt.Errorf("there is no planted bug %q", name)
			}
			cfg.Plant = append(cfg.Plant, plant.All()[i])
		}
		return nil
	})
}
