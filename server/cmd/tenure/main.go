// Command tenure elects leaders with fencing. `tenure --help` lists its commands:
//
//	run a command while leading   exec, once, serve, keeper
//	show                          leader, watch, top, history, groups, candidates, sessions, shards
//	operate                       step-down, transfer, cordon, uncordon, drain, pin, weigh, policy
//	diagnose                      explain, doctor, version
//	repair                        epoch, fence
//
// Results go to standard output, everything else to standard error. Every flag can be set
// in the environment (`tenure help environment`); `tenure help exit-codes` lists the exit
// codes. The first SIGINT or SIGTERM stops a command in order, the second at once.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/cmd/tenure/diagnose"
	"github.com/tenurehq/tenure/server/cmd/tenure/operate"
	"github.com/tenurehq/tenure/server/cmd/tenure/repair"
	"github.com/tenurehq/tenure/server/cmd/tenure/show"
	"github.com/tenurehq/tenure/server/supervise/keeper"
)

func main() {
	if keeper.Called(os.Args) {
		os.Exit(keeper.Main(os.Args, endSession))
	}
	ctx := context.Background()
	if len(os.Args) < 2 || os.Args[1] != "exec" { // exec passes signals to its command
		ctx = cli.UntilSignal()
	}
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, env cli.Env, stdin io.Reader, stdout, stderr io.Writer) int {
	return cli.Run(ctx, newRoot(env), args, stdin, stdout, stderr)
}

func newRoot(env cli.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "tenure",
		Short: "Leader election with fencing",
		Long: `Leader election with fencing: each group has one leader, and the leader has a token with
which a resource can refuse the writes of every earlier leader.

Elections are held by a service (` + "`tenure serve`" + `) or directly on an engine
(--store=etcd://host:port). Without --store, commands use the service at
http://127.0.0.1:7400.`,
		Example: `  tenure serve                                   # elections for this machine, to try things out
  tenure exec billing -- ./reconcile.sh          # runs it while leading "billing"
  tenure leader billing
  tenure step-down billing`,
		Version:                    thisBuild().Version,
		SuggestionsMinimumDistance: 2,
		SilenceUsage:               true,
		SilenceErrors:              true,
		Args:                       cobra.NoArgs,
		RunE:                       cli.MissingCommand,
	}
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"run", "Run a command while leading:", []*cobra.Command{newExec(env), newOnce(env), newServe(), newKeeper(env)}},
		{"show", "Show:", show.Commands(env)},
		{"operate", "Operate:", operate.Commands(env)},
		{"diagnose", "Diagnose:", append(diagnose.Commands(env), newVersion(env))},
		{"repair", "Repair:", repair.Commands(env)},
	} {
		root.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, c := range group.commands {
			c.GroupID = group.id
			root.AddCommand(c)
		}
	}
	root.AddCommand(newExitCodes(), newEnvironment())
	cli.FromEnvironment(root, env)
	root.InitDefaultVersionFlag()
	return root
}
