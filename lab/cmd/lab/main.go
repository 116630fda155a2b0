// Command lab runs a fleet on one machine, breaks it, and checks what it did:
//
//	lab up      run an engine, the ledger, three nodes and two workers
//	lab demo    show that a stale leader's write is refused
//	lab load    take numbers from a fleet and measure the latency
//	lab run     run experiments: inject faults, check what held
//	lab storm   inject faults of every kind at random, for a set time
//	lab strategies  compare election strategies under the same faults
//	lab sites   replay an outage in which two sites accept writes
//	lab regions measure Tenure on etcd across three regions
//	lab prevote count how often a Raft node that comes back disrupts the leader
//	lab report  print the results of experiments, or write docs/findings.md
//	lab check   check the histories of experiments and of lab load
//	lab jobs    fill a ledger's database with jobs
//
// Data goes to standard output, everything else to standard error. Every flag can be set
// in the environment: --rate of lab load is LAB_LOAD_RATE. The first SIGINT or SIGTERM
// stops a command in order, the second ends it at once.
//
// Exit codes: 0 success, 1 failure, 2 wrong usage, 6 unavailable, try again, 99 a bar was
// not met or something expected was not seen.
package main

import (
	"context"
	"encoding/json"
	"errors"
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
		Short:         "Run a fleet on this machine, break it, and check what it did",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          cli.MissingCommand,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newUp(), newDemo(), newLoad(), newRun(), newStorm(), newCheck(), newReport(), newJobs(), newBare(), newStrategies(), newCandidate(), newSites(), newRegions(), newPreVote())
	for _, c := range root.Commands() {
		run := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			if exit := (*cli.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				return cli.Exit(exitFailure, err)
			}
			return err
		}
	}
	cli.FromEnvironment(root, env)
	return root
}

// output is the format of the answer.
type output string

func (o *output) flag(f *pflag.FlagSet) {
	f.StringVarP((*string)(o), "output", "o", "text", "format: text or json")
}

func (o *output) validate() error {
	if *o != "text" && *o != "json" {
		return cli.Exit(exitUsage, fmt.Errorf("output %q: use text or json", string(*o)))
	}
	return nil
}

// write writes an answer as JSON, or with text.
func (o *output) write(w io.Writer, answer any, text func(io.Writer) error) error {
	if *o == "json" {
		return json.NewEncoder(w).Encode(answer)
	}
	return text(w)
}
