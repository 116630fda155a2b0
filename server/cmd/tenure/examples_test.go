package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every command has an example, and every example has flags and arguments that its command
// accepts.
func TestExamples(t *testing.T) {
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		for _, below := range cmd.Commands() {
			check(below)
		}
		if cmd.Example == "" && cmd.Runnable() && cmd.Name() != "help" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " # ")
			words := strings.Fields(strings.NewReplacer("'shard-*'", "shard-*", "'disk is failing'", "disk").Replace(line))
			root := newRoot(environment())
			found, rest, err := root.Find(words[1:])
			if err == nil {
				err = found.ParseFlags(rest)
			}
			if err == nil {
				err = found.ValidateArgs(found.Flags().Args())
			}
			if err != nil || found == root || !strings.HasPrefix(found.CommandPath(), cmd.CommandPath()) {
				t.Errorf("%s: %q is for %q: %v", cmd.CommandPath(), line, found.CommandPath(), err)
			}
		}
	}
	check(newRoot(environment()))
}
