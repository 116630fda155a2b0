//go:build !planted

package main

import (
	"flag"
	"testing"

	"github.com/tenurehq/tenure/server/inventory"
)

var update = flag.Bool("update", false, "write the list of commands and flags into docs/inventory")

// Every command and flag, with its environment variables, is on the committed list.
func TestInventory(t *testing.T) {
	root := newRoot(func(string) (string, bool) { return "", false })
	if err := inventory.Check("labfleet", inventory.Commands(root), *update); err != nil {
		t.Error(err)
	}
}
