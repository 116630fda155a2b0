//go:build !planted

package main

import (
	"flag"

	"github.com/tenurehq/tenure/app/fleet"
)

// plantFlag adds nothing: this build has no bugs to plant.
func plantFlag(*flag.FlagSet, *fleet.Config) {}
