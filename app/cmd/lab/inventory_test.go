package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// No command and no flag is lost by accident.
func TestInventory(t *testing.T) {
	var got []string
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		got = append(got, c.CommandPath())
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { got = append(got, c.CommandPath()+" --"+f.Name+" "+f.DefValue) })
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(func(string) (string, bool) { return "", false }))
	for i, line := range got {
		got[i] = strings.TrimSpace(strings.ReplaceAll(line, resultsDir(), "RESULTS"))
	}
	want, err := os.ReadFile("testdata/inventory.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(want)) {
		if line = strings.TrimSpace(line); !slices.Contains(got, line) {
			t.Errorf("lost: %s", line)
		}
	}
	if t.Failed() {
		t.Logf("there are:\n%s", strings.Join(got, "\n"))
	}
}
