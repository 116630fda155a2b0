//go:build !planted

package main

import (
	"flag"

	"github.com/tenurehq/tenure/reference/node"
)

// plantFlag adds nothing: this build has no bugs to plant.
func plantFlag(*flag.FlagSet, *node.Config) {}
