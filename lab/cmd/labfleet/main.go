// Command labfleet is the program fleet with the hooks of the lab: its nodes serve the routes
// under /lab, write a trace and can have wrong clocks, and its ledger can run without fencing.
// Experiments start it. Do not use it for data of value.
package main

import (
	"fmt"
	"os"
	_ "time/tzdata" // schedules name time zones, and not every host has them

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/lab/labnode"
	"github.com/tenurehq/tenure/reference/command"
	"github.com/tenurehq/tenure/reference/ledger/ledgerhttp"
	"github.com/tenurehq/tenure/server/cli"
)

func main() {
	command.Keeper()
	os.Exit(cli.Run(cli.UntilSignal(), newRoot(os.LookupEnv), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func newRoot(env func(string) (string, bool)) *cobra.Command {
	return command.Root("labfleet", env, command.Node(env, labnode.Flags), command.Ledger(fencing), command.Worker())
}

// fencing lets a ledger accept stale writes.
func fencing(f *pflag.FlagSet, cfg *ledgerhttp.Config) {
	f.Func("fencing", "on (default), or off: accept stale writes too", func(s string) error {
		if s != "on" && s != "off" {
			return fmt.Errorf("%q is neither on nor off", s)
		}
		cfg.Unfenced = s == "off"
		return nil
	})
}
