package main

import (
	"bytes"
	"flag"
	"testing"

	"github.com/tenurehq/tenure/server/inventory"
)

var update = flag.Bool("update", false, "write the list of commands and flags into docs/inventory")

// Every command, flag and environment variable is on the committed list.
func TestInventory(t *testing.T) {
	var lines []string
	for _, v := range verbs() {
		var help bytes.Buffer
		var variables []string
		env := func(name string) (string, bool) {
			variables = append(variables, name)
			return "", false
		}
		_, _ = parse([]string{v.name, "-h"}, env, &help)
		_, _ = parse([]string{v.name}, env, &bytes.Buffer{})
		lines = append(lines, inventory.Flags("chaos "+v.name, help.String(), variables)...)
	}
	if err := inventory.Check("chaos", lines, *update); err != nil {
		t.Error(err)
	}
}
