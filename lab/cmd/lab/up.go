package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/server/cli"
)

// fleetFlags are those of every verb that starts a fleet.
func fleetFlags(f *pflag.FlagSet, cfg *lab.Config) {
	f.StringVar(&cfg.Bin, "bin", "", "folder of engine and labfleet (default that of lab, else they are built)")
	f.StringVar(&cfg.Dir, "dir", "", "folder for data and logs, kept (default a temporary one, removed)")
	f.StringVar(&cfg.Group, "group", "billing", "what the nodes elect a leader of")
	f.StringVar(&cfg.Backend, "backend", "etcd", "etcd or raft")
	f.IntVar(&cfg.Engines, "engines", 1, "how many members etcd has")
	f.IntVar(&cfg.Nodes, "nodes", 3, "how many nodes")
	f.IntVar(&cfg.Workers, "workers", 2, "how many workers, -1 is none")
}

func newUp() *cobra.Command {
	var cfg lab.Config
	var rate float64
	var nodeArgs string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run an engine, the ledger, nodes and workers, and say what happens",
		Long: `Run a fleet on free loopback ports and say what happens in it, one line a change,
until Ctrl-C. Each node reaches the engine and the ledger through a proxy of its own
(Toxiproxy), so that faults can be put there. The fleet file says where everything is.
A program that ends is started again. Nothing is left behind.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.Validate(); err != nil {
				return cli.Exit(exitUsage, err)
			}
			if rate < 0 || rate > 100_000 {
				return cli.Exit(exitUsage, errors.New("rate: 0 to 100000 calls a second"))
			}
			cfg.NodeArgs = strings.Fields(nodeArgs)
			line := lab.NewTimeline(cmd.ErrOrStderr())
			bin, err := lab.FindPrograms(cmd.Context(), cfg.Bin, func(s string) { line.Say("%s", s) })
			if err != nil {
				return cli.Exit(exitFailure, err)
			}
			cfg.Bin = bin
			line = lab.NewTimeline(cmd.ErrOrStderr())
			if err := lab.Up(cmd.Context(), cfg, rate, line); err != nil {
				return cli.Exit(exitFailure, err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	fleetFlags(f, &cfg)
	f.StringVar(&cfg.File, "fleet", "", "where the fleet file is written (default fleet.json in the folder)")
	f.DurationVar(&cfg.TTL, "ttl", 0, "how long a lease lasts (default 3s)")
	f.StringVar(&cfg.DB, "db", "", "the ledger's database (default a SQLite file in the folder)")
	f.BoolVar(&cfg.Unfenced, "unfenced", false, "take the fence away from the ledger, to see what then happens")
	f.BoolVar(&cfg.Direct, "direct", false, "no proxies between the nodes and what they lean on")
	f.BoolVar(&cfg.ClientProxies, "client-proxies", false, "proxies before the nodes too: callers are sent there")
	f.StringVar(&nodeArgs, "node-args", "", "further flags for each node, separated by spaces")
	f.Float64Var(&rate, "rate", 100, "calls of /next a second, 0 is none")
	return cmd
}

func newDemo() *cobra.Command {
	var cfg lab.Config
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a stale leader's write being refused, in about 10 seconds",
		Long: `Run a fleet with leases of 2 s, stop its leader between its check and its write, let
another take over, and let the first go on: its write is refused. The exit code is 0
only if all of that was seen, and 99 if something was not.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.Validate(); err != nil {
				return cli.Exit(exitUsage, err)
			}
			line := lab.NewTimeline(cmd.OutOrStdout())
			bin, err := lab.FindPrograms(cmd.Context(), cfg.Bin, func(s string) { line.Say("%s", s) })
			if err != nil {
				return cli.Exit(exitFailure, err)
			}
			cfg.Bin = bin
			line = lab.NewTimeline(cmd.OutOrStdout())
			switch err := experiment.Demo(cmd.Context(), cfg, line); {
			case errors.Is(err, experiment.ErrNotSeen):
				return cli.Exit(exitThreshold, err)
			case err != nil:
				return cli.Exit(exitFailure, err)
			}
			line.Say("seen: the belief of a leader can be wrong, and its write is refused all the same")
			return nil
		},
	}
	fleetFlags(cmd.Flags(), &cfg)
	return cmd
}
