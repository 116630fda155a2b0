// Command tenure is the programs of Tenure under one name, one verb each:
//
//	tenure serve           elections over HTTP
//	tenure ledger          the fenced resource, as a process
//	tenure worker          acts on the orders of a fleet's leader
//	tenure fence mark      the highest token that a resource has seen
//	tenure fence advance   move it up by hand
//
// Data goes to standard output, everything else to standard error. Every flag can be
// given in the environment, after the verb: --db of ledger is TENURE_LEDGER_DB. Long
// flags may have one dash or two. The first SIGINT or SIGTERM stops a verb in order,
// the second ends it at once.
//
// Exit codes: 0 ok, 1 failure, 2 wrong usage, 3 the answer is no, 4 refused by the
// fence, 6 unavailable, try again.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/app/cli"
)

const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNo          = 3
	exitFenced      = 4
	exitUnavailable = 6
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		s := <-signals
		signal.Reset(os.Interrupt, syscall.SIGTERM) // the second ends the process
		cancel(fmt.Errorf("stopped by signal: %v", s))
	}()
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr))
}

// exitError is an error with the exit code that it stands for.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// run is the program without its process.
func run(ctx context.Context, args []string, env func(string) (string, bool), stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot(env)
	root.SetArgs(cli.OneDash(root, args))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		_, _ = fmt.Fprintf(stderr, "error: %s\n", line)
	}
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	// What cobra itself says is about flags and arguments.
	return exitUsage
}

func newRoot(env func(string) (string, bool)) *cobra.Command {
	root := &cobra.Command{
		Use:           "tenure",
		Short:         "Leader election with fencing",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return &exitError{exitUsage, errors.New("which verb?")}
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newServe(), newLedger(), newWorker(), newFence())
	cli.FromEnvironment(root, env)
	return root
}
