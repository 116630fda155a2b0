// Command tenure is the programs of Tenure under one name, one verb each:
//
//	tenure exec            run a command only while leading
//	tenure serve           elections over HTTP
//	tenure ledger          the fenced resource, as a process
//	tenure worker          acts on the orders of a fleet's leader
//
//	tenure leader, watch, history, groups, candidates, sessions    see
//	tenure step-down, transfer, cordon, uncordon, policy           steer
//	tenure explain, doctor, version                                think
//	tenure epoch show, epoch raise, fence mark, fence advance      mend
//
// Data goes to standard output, everything else to standard error. Every flag can be
// given in the environment, after the verb: --db of ledger is TENURE_LEDGER_DB, and those
// that say where the elections are also without: --store is TENURE_STORE. Long flags may
// have one dash or two. The first SIGINT or SIGTERM stops a verb in order, the second
// ends it at once. `tenure help exit-codes` lists the exit codes.
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
	"github.com/tenurehq/tenure/app/keep"
)

func main() {
	if keep.Called(os.Args) {
		os.Exit(keep.Main(os.Args))
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	if len(os.Args) < 2 || os.Args[1] != "exec" { // whose signals are its command's
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		go func() {
			s := <-signals
			signal.Reset(os.Interrupt, syscall.SIGTERM) // the second ends the process
			cancel(fmt.Errorf("stopped by signal: %v", s))
		}()
	}
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr))
}

// run is the program without its process.
func run(ctx context.Context, args []string, env func(string) (string, bool), stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot(env)
	root.SetArgs(cli.OneDash(root, args))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	verb, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if code, ok := commandsOwn(err); ok {
		return code // it has said what there is to say
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		_, _ = fmt.Fprintf(stderr, "error: %s\n", line)
	}
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	// What cobra itself says is about flags and arguments.
	_, _ = fmt.Fprintf(stderr, "error: %s\n", usage(verb, args))
	return exitUsage
}

// usage says how a verb is called, or which one may have been meant.
func usage(verb *cobra.Command, args []string) string {
	if verb.HasParent() {
		return fmt.Sprintf("it is used as: %s; see `%s --help`", verb.UseLine(), verb.CommandPath())
	}
	if len(args) > 0 {
		if near := verb.SuggestionsFor(args[0]); len(near) > 0 {
			return fmt.Sprintf("did you mean `tenure %s`?", strings.Join(near, "` or `tenure "))
		}
	}
	return "see `tenure help` for the verbs"
}

func newRoot(env func(string) (string, bool)) *cobra.Command {
	root := &cobra.Command{
		Use:   "tenure",
		Short: "Leader election with fencing",
		Long: `Leader election with fencing: one leader per group, and a token with which whatever it
writes to can refuse every other process that still thinks it leads.

Elections happen at a service (` + "`tenure serve`" + `) or straight on an engine
(--store=etcd://host:port); without --store all verbs ask http://127.0.0.1:7400.`,
		SuggestionsMinimumDistance: 2,
		SilenceUsage:               true,
		SilenceErrors:              true,
		Args:                       cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return &exitError{exitUsage, errors.New("which verb?")}
		},
	}
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run:"}, &cobra.Group{ID: "see", Title: "See:"}, &cobra.Group{ID: "steer", Title: "Steer:"},
		&cobra.Group{ID: "think", Title: "Think:"}, &cobra.Group{ID: "mend", Title: "Mend:"},
	)
	add := func(group string, verbs ...*cobra.Command) {
		for _, v := range verbs {
			v.GroupID = group
			root.AddCommand(v)
		}
	}
	add("run", newExec(env), newServe(), newLedger(), newWorker())
	add("see", newLeader(env), newWatch(env), newHistory(env), newGroups(env), newCandidates(env), newSessions(env))
	add("steer", newStepDown(env), newTransfer(env), newCordon(env), newUncordon(env), newPolicy(env))
	add("think", newExplain(env), newDoctor(env), newVersion(env))
	add("mend", newEpoch(env), newFence())
	root.AddCommand(newExitCodes(), newEnvironment())
	exemplify(root, examples())
	cli.FromEnvironment(root, env)
	return root
}
