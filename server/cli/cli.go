// Package cli is what the command lines of this module have in common: every flag can
// be given in the environment.
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

// shared marks flags that mean the same for every verb.
const shared = "tenure_shared"

// Shared lets flags also be given without the verb: PROGRAM_X_Y.
func Shared(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if err := flags.SetAnnotation(name, shared, nil); err != nil {
			panic("cli: " + err.Error()) // there is no such flag
		}
	}
}

// FromEnvironment lets every flag --x-y of a verb be given as PROGRAM_VERB_X_Y, and those
// that are shared as PROGRAM_X_Y. A flag that was given goes before, then the verb's own
// variable. A value that is none is an error as that of a flag is.
func FromEnvironment(root *cobra.Command, env func(string) (string, bool)) {
	for verb := range verbs(root) {
		verb.PreRunE = func(cmd *cobra.Command, _ []string) error {
			if err := Set(cmd, env); err != nil {
				return cmd.FlagErrorFunc()(cmd, err)
			}
			return nil
		}
	}
}

// Set gives the flags of a verb their values from the environment.
func Set(verb *cobra.Command, env func(string) (string, bool)) error {
	var wrong error
	flags := verb.Flags()
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			return
		}
		for _, name := range Variables(verb, f) {
			v, ok := env(name)
			if !ok || v == "" {
				continue
			}
			if err := flags.Set(f.Name, v); err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("environment %s=%q: %w", name, v, err))
			}
			return
		}
	})
	return wrong
}

// Variables are the names under which a flag of a verb can be given, the strongest first.
func Variables(verb *cobra.Command, f *pflag.Flag) []string {
	upper := func(s string) string { return strings.ToUpper(strings.NewReplacer(" ", "_", "-", "_").Replace(s)) }
	out := []string{upper(verb.CommandPath() + " " + f.Name)}
	if _, ok := f.Annotations[shared]; ok {
		out = append(out, upper(verb.Root().Name()+" "+f.Name))
	}
	return out
}
