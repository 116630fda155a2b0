// Package cli is what the command lines of this module have in common: every flag can
// be given in the environment, and with one dash or two.
package cli

import (
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// verbs are all below a command.
func verbs(of *cobra.Command) iter.Seq[*cobra.Command] {
	return func(yield func(*cobra.Command) bool) {
		for _, verb := range of.Commands() {
			if !yield(verb) {
				return
			}
			for below := range verbs(verb) {
				if !yield(below) {
					return
				}
			}
		}
	}
}

// FromEnvironment lets every flag --x-y of a verb be given as PROGRAM_VERB_X_Y. A flag
// that was given goes before.
func FromEnvironment(root *cobra.Command, env func(string) (string, bool)) {
	for verb := range verbs(root) {
		path := strings.ReplaceAll(strings.ToUpper(verb.CommandPath()), " ", "_")
		verb.PreRunE = func(cmd *cobra.Command, _ []string) error { return set(cmd.Flags(), path+"_", env) }
	}
}

func set(flags *pflag.FlagSet, prefix string, env func(string) (string, bool)) error {
	var wrong error
	flags.VisitAll(func(f *pflag.Flag) {
		name := prefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if v, ok := env(name); ok && v != "" && !f.Changed {
			if err := flags.Set(f.Name, v); err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("environment %s=%q: %w", name, v, err))
			}
		}
	})
	return wrong
}

// OneDash lets long flags have one dash, as those of the programs without verbs do.
func OneDash(root *cobra.Command, args []string) []string {
	long := func(name string) bool {
		for verb := range verbs(root) {
			if f := verb.Flags().Lookup(name); f != nil && (len(name) > 1 || f.Shorthand != name) {
				return true
			}
		}
		return name == "help"
	}
	out := make([]string, 0, len(args))
	for i, a := range args {
		if a == "--" {
			return append(out, args[i:]...)
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(a, "-"), "=")
		if strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && long(name) {
			a = "-" + a
		}
		out = append(out, a)
	}
	return out
}
