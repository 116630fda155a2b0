// Command tenure is the programs of Tenure under one name, one verb each:
//
//	tenure exec            run a command only while leading
//	tenure serve           elections over HTTP
//
//	tenure leader, watch, history, groups, candidates, sessions    see
//	tenure step-down, transfer, cordon, uncordon, policy           steer
//	tenure explain, doctor, version                                think
//	tenure epoch show, epoch raise, fence mark, fence advance      mend
//
// Data goes to standard output, everything else to standard error. Every flag can be
// given in the environment, after the verb: --listen of serve is TENURE_SERVE_LISTEN, and
// those that say where the elections are also without: --store is TENURE_STORE. The first SIGINT or SIGTERM stops a verb in order, the second
// ends it at once. `tenure help exit-codes` lists the exit codes.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/supervise"
)

func main() {
	if supervise.Called(os.Args) {
		os.Exit(supervise.Main(os.Args))
	}
	ctx := context.Background()
	if len(os.Args) < 2 || os.Args[1] != "exec" { // exec passes signals to its command
		ctx = cli.UntilSignal()
	}
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr))
}

// run is the program without its process.
func run(ctx context.Context, args []string, env func(string) (string, bool), stdin io.Reader, stdout, stderr io.Writer) int {
	return cli.Run(ctx, newRoot(env), args, stdin, stdout, stderr)
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
		RunE:                       cli.MissingCommand,
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
	add("run", newExec(env), newServe())
	add("see", newLeader(env), newWatch(env), newHistory(env), newGroups(env), newCandidates(env), newSessions(env))
	add("steer", newStepDown(env), newTransfer(env), newCordon(env), newUncordon(env), newPolicy(env))
	add("think", newExplain(env), newDoctor(env), newVersion(env))
	add("mend", newEpoch(env), newFence())
	root.AddCommand(newExitCodes(), newEnvironment())
	exemplify(root, examples())
	cli.FromEnvironment(root, env)
	return root
}
