//go:build planted

package main

import (
	"flag"
	"fmt"
	"strings"

	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/reference/node"
)

// plantFlag lets experiments plant bugs by name.
func plantFlag(fs *flag.FlagSet, cfg *node.Config) {
	fs.Func("plant", "bugs to plant in the lease, separated by commas, with -lab", func(s string) error {
		cfg.Plant = nil
		for name := range strings.SplitSeq(s, ",") {
			found := false
			for _, b := range plant.All() {
				if b.String() == strings.TrimSpace(name) {
					cfg.Plant, found = append(cfg.Plant, b), true
				}
			}
			if !found {
				return fmt.Errorf("%q is no bug that is known", name)
			}
		}
		return nil
	})
}
