// Package cli holds what the command lines of this repository share: exit codes, flags
// from the environment, and output as a table, JSON, YAML or names.
package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Env looks up an environment variable, as os.LookupEnv does.
type Env = func(name string) (value string, ok bool)

// shared marks flags that mean the same for every command.
const shared = "tenure_shared"

// Shared lets flags also be set without the command's name: PROGRAM_X_Y.
func Shared(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if err := flags.SetAnnotation(name, shared, nil); err != nil {
			panic("cli: " + err.Error()) // there is no such flag
		}
	}
}

// FromEnvironment lets every flag --x-y of every command below root be set as
// PROGRAM_COMMAND_X_Y, and shared flags also as PROGRAM_X_Y. A flag on the command line
// has precedence, then the command's own variable.
func FromEnvironment(root *cobra.Command, env Env) {
	for _, c := range root.Commands() {
		c.PreRunE = func(cmd *cobra.Command, _ []string) error {
			if err := SetFlags(cmd, env); err != nil {
				return cmd.FlagErrorFunc()(cmd, err)
			}
			return nil
		}
		FromEnvironment(c, env)
	}
}

// SetFlags sets the flags that are not on the command line from the environment.
func SetFlags(cmd *cobra.Command, env Env) error {
	var errs error
	flags := cmd.Flags()
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			return
		}
		for _, name := range Variables(cmd, f) {
			v, ok := env(name)
			if !ok || v == "" {
				continue
			}
			if err := flags.Set(f.Name, v); err != nil {
				errs = errors.Join(errs, fmt.Errorf("environment %s=%q: %w", name, v, err))
			}
			return
		}
	})
	return errs
}

// Variables returns the environment variables that set a flag, highest precedence first.
func Variables(cmd *cobra.Command, f *pflag.Flag) []string {
	upper := func(s string) string { return strings.ToUpper(strings.NewReplacer(" ", "_", "-", "_").Replace(s)) }
	out := []string{upper(cmd.CommandPath() + " " + f.Name)}
	if _, ok := f.Annotations[shared]; ok {
		out = append(out, upper(cmd.Root().Name()+" "+f.Name))
	}
	return out
}
