package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every verb has an example, and every example is one of its verb, with flags and arguments
// that it takes.
func TestExamples(t *testing.T) {
	all := examples()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, verb := range cmd.Commands() {
			walk(verb)
		}
		if _, ok := all[cmd.CommandPath()]; !ok && cmd.Runnable() && cmd.Name() != "help" {
			t.Errorf("%s has none", cmd.CommandPath())
		}
	}
	walk(newRoot(environment()))
	for path, text := range all {
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " # ")
			words := strings.Fields(strings.NewReplacer("'shard-*'", "shard-*", "'disk is failing'", "disk").Replace(line))
			root := newRoot(environment())
			verb, rest, err := root.Find(words[1:])
			if err == nil {
				err = verb.ParseFlags(rest)
			}
			if err == nil {
				err = verb.ValidateArgs(verb.Flags().Args())
			}
			if err != nil || verb == root || !strings.HasPrefix(verb.CommandPath(), path) {
				t.Errorf("%s: %q is of %q: %v", path, line, verb.CommandPath(), err)
			}
		}
	}
}
