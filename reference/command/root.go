// Package command has the commands of the program fleet: ledger, node and worker. The lab
// builds a program of its own from them, with more flags.
package command

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server/cli"
)

// Root returns the command of a program. Every flag of its commands can be given in the
// environment.
func Root(name string, env func(string) (string, bool), commands ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:           name,
		Short:         "Run a node, the ledger or a worker of the reference fleet",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          cli.MissingCommand,
	}
	root.AddCommand(commands...)
	cli.FromEnvironment(root, env)
	return root
}

// printReady prints the line that says that the command serves.
func printReady(cmd *cobra.Command, line any) error {
	if err := json.NewEncoder(cmd.OutOrStdout()).Encode(line); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	return nil
}
