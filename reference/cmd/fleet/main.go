// Command fleet runs the processes of the reference fleet:
//
//	fleet node      campaigns, and does the leader's work while it leads
//	fleet ledger    the resource that the leader writes to
//	fleet worker    executes the leader's orders
//
// Data goes to standard output, everything else to standard error. Every flag can be
// given in the environment, after the command: --db of ledger is FLEET_LEDGER_DB. The
// first SIGINT or SIGTERM stops a command in order, the second ends it at once.
//
// Exit codes: 0 ok, 1 failure, 2 wrong usage, 6 unavailable, try again. A node has 75
// besides: its work did not stop in time.
package main

import (
	"context"
	"io"
	"os"
	_ "time/tzdata" // schedules name time zones, and not every host has them

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/reference/command"
	"github.com/tenurehq/tenure/server/cli"
)

func main() {
	command.Keeper()
	os.Exit(run(cli.UntilSignal(), os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr))
}

// run is the program without its process.
func run(ctx context.Context, args []string, env func(string) (string, bool), stdin io.Reader, stdout, stderr io.Writer) int {
	return cli.Run(ctx, newRoot(env), args, stdin, stdout, stderr)
}

func newRoot(env func(string) (string, bool)) *cobra.Command {
	return command.Root("fleet", env, command.Node(env, nil), command.Ledger(nil), command.Worker())
}
