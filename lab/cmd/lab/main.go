// Command lab runs a fleet on one machine and calls it:
//
//	lab up      an engine, the ledger, three nodes and two workers; says what happens
//	lab demo    the same, scripted: a stale leader's write is refused
//	lab load    takes numbers from a fleet and says how long that took
//	lab run     runs experiments: attacks a fleet, checks what it did
//	lab storm   faults of every kind at random, for a set time
//	lab report  says again what the experiments have shown, or writes docs/findings.md
//	lab check   checks the histories of experiments and of lab load
//	lab jobs    fills a ledger's database with jobs
//
// Data goes to standard output, everything else to standard error. Every flag can be
// given in the environment, after the verb: --rate of load is LAB_LOAD_RATE. The first SIGINT or SIGTERM stops a verb in order, the
// second ends it at once.
//
// Exit codes: 0 ok, 1 failure, 2 wrong usage, 6 unavailable, try again, 99 a threshold
// was not met or something was not seen.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/server/cli"
)

const (
	exitOK          = cli.ExitOK
	exitFailure     = cli.ExitFailure
	exitUsage       = cli.ExitUsage
	exitUnavailable = cli.ExitUnavailable
	exitThreshold   = 99
)

func main() {
	os.Exit(run(cli.UntilSignal(), os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr))
}

// run is the program without its process.
func run(ctx context.Context, args []string, env func(string) (string, bool), stdin io.Reader, stdout, stderr io.Writer) int {
	return cli.Run(ctx, newRoot(env), args, stdin, stdout, stderr)
}

func newRoot(env func(string) (string, bool)) *cobra.Command {
	root := &cobra.Command{
		Use:           "lab",
		Short:         "Run a fleet on this machine, call it, and check what it did",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          cli.MissingCommand,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newUp(), newDemo(), newLoad(), newRun(), newStorm(), newCheck(), newReport(), newJobs(), newBare())
	cli.FromEnvironment(root, env)
	return root
}

// output is the form of the answer.
type output string

func (o *output) flag(f *pflag.FlagSet) {
	f.StringVarP((*string)(o), "output", "o", "text", "text or json")
}

func (o *output) json() (bool, error) {
	switch *o {
	case "text":
		return false, nil
	case "json":
		return true, nil
	}
	return false, cli.Exit(exitUsage, fmt.Errorf("output: %q is neither text nor json", string(*o)))
}
