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
	"iter"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	root.SetArgs(oneDash(root, args))
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
	for verb := range verbs(root) {
		path := strings.ReplaceAll(strings.ToUpper(verb.CommandPath()), " ", "_")
		verb.PreRunE = func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd.Flags(), path+"_", env) }
	}
	return root
}

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

// fromEnvironment sets the flags that were not given.
func fromEnvironment(flags *pflag.FlagSet, prefix string, env func(string) (string, bool)) error {
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

// oneDash lets long flags have one dash, as those of the other programs do.
func oneDash(root *cobra.Command, args []string) []string {
	long := func(name string) bool {
		for verb := range verbs(root) {
			if verb.Flags().Lookup(name) != nil {
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
		if strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && len(name) > 1 && long(name) {
			a = "-" + a
		}
		out = append(out, a)
	}
	return out
}
