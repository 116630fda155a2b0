package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/server/cli"
)

// fleetFlags are the flags of every command that starts a fleet.
func fleetFlags(f *pflag.FlagSet, cfg *lab.Config) {
	binFlag(f, &cfg.Bin)
	f.StringVar(&cfg.Dir, "dir", "", "folder for data and logs, kept (default a temporary one, removed)")
	f.StringVar(&cfg.Group, "group", "billing", "group that the nodes elect a leader of")
	f.StringVar(&cfg.Backend, "backend", "etcd", "engine: "+strings.Join(lab.Backends(), ", "))
	f.IntVar(&cfg.Engines, "engines", 1, "number of etcd members")
	f.IntVar(&cfg.Nodes, "nodes", 3, "number of nodes")
	f.IntVar(&cfg.Workers, "workers", 2, "number of workers, -1 is none")
	f.BoolVar(&cfg.Pulse, "pulse", lab.CanPulse, "give each node a keeper, so that a killed leader is replaced within milliseconds (Linux)")
}

func binFlag(f *pflag.FlagSet, bin *string) {
	f.StringVar(bin, "bin", "", "folder of engine and labfleet (default that of lab, else they are built)")
}

// withFleet validates the configuration, finds the programs, and calls do with a new
// timeline.
func withFleet(ctx context.Context, cfg *lab.Config, w io.Writer, do func(*lab.Timeline) error) error {
	if err := cfg.Validate(); err != nil {
		return cli.Exit(exitUsage, err)
	}
	finding := lab.NewTimeline(w)
	bin, err := lab.FindPrograms(ctx, cfg.Bin, func(s string) { finding.Say("%s", s) })
	if err != nil {
		return err
	}
	cfg.Bin = bin
	return do(lab.NewTimeline(w))
}

func newUp() *cobra.Command {
	var cfg lab.Config
	var rate float64
	var nodeArgs string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run an engine, the ledger, nodes and workers, and report what happens",
		Long: `Run a fleet on free loopback ports and report each change in it, until Ctrl-C. Each node
reaches the engine and the ledger through its own proxy (Toxiproxy), where faults can be
injected. The fleet file says where everything is. A program that ends is restarted.
Nothing is left behind.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if rate < 0 || rate > 100_000 {
				return cli.Exit(exitUsage, errors.New("rate: use 0 to 100000 calls a second"))
			}
			cfg.NodeArgs = strings.Fields(nodeArgs)
			return withFleet(cmd.Context(), &cfg, cmd.ErrOrStderr(), func(line *lab.Timeline) error { return lab.Up(cmd.Context(), cfg, rate, line) })
		},
	}
	f := cmd.Flags()
	fleetFlags(f, &cfg)
	f.StringVar(&cfg.File, "fleet", "", "path of the fleet file (default fleet.json in the folder)")
	f.DurationVar(&cfg.TTL, "ttl", 0, "TTL of the lease (default 3s)")
	f.StringVar(&cfg.DB, "db", "", "the ledger's database (default a SQLite file in the folder)")
	f.BoolVar(&cfg.Unfenced, "unfenced", false, "switch the ledger's fence off, to see what happens then")
	f.BoolVar(&cfg.Direct, "direct", false, "no proxies between the nodes and the engine or the ledger")
	f.BoolVar(&cfg.ClientProxies, "client-proxies", false, "proxies in front of the nodes too, for callers")
	f.StringVar(&nodeArgs, "node-args", "", "more flags for each node, separated by spaces")
	f.Float64Var(&rate, "rate", 100, "calls of /next a second, 0 is none")
	return cmd
}

func newDemo() *cobra.Command {
	var cfg lab.Config
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show that a stale leader's write is refused, in about 10 seconds",
		Long: `Run a fleet with a TTL of 2 s, stop its leader between its check and its write, let
another node take over, and let the first one continue: its write is refused. The exit
code is 0 only if all of that was seen, and 99 if something was not.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withFleet(cmd.Context(), &cfg, cmd.OutOrStdout(), func(line *lab.Timeline) error {
				err := trial.Demo(cmd.Context(), cfg, line)
				if errors.Is(err, trial.ErrNotSeen) {
					return cli.Exit(exitThreshold, err)
				}
				if err == nil {
					line.Say("seen: a leader's belief can be wrong, and its write is refused anyway")
				}
				return err
			})
		},
	}
	fleetFlags(cmd.Flags(), &cfg)
	return cmd
}
