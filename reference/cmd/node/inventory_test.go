//go:build !planted

package main

import (
	"bytes"
	"flag"
	"testing"

	"github.com/tenurehq/tenure/server/inventory"
)

var update = flag.Bool("update", false, "write the list of flags into docs/inventory")

// Every flag and environment variable is on the committed list.
func TestInventory(t *testing.T) {
	var help bytes.Buffer
	var variables []string
	env := func(name string) (string, bool) {
		variables = append(variables, name)
		return "", false
	}
	_, _ = parse([]string{"-h"}, env, &help)
	_, _ = parse(nil, env, &bytes.Buffer{})
	if err := inventory.Check("node", inventory.Flags("node", help.String(), variables), *update); err != nil {
		t.Error(err)
	}
}
