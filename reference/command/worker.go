package command

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/worker"
	"github.com/tenurehq/tenure/server/cli"
)

// Worker returns the command that runs a worker.
func Worker() *cobra.Command {
	var cfg worker.Config
	var insecure, untilEOF bool
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run a worker: it acts on the orders of the leader, and refuses those of a stale one",
		Long: `Run a worker as a process. The leader of a fleet sends it orders over HTTP with its fencing
token: standing orders, which the worker continues while nobody leads and after a restart,
and orders that are done once. It refuses every token below the highest that it has seen.
When it serves, it prints one line of JSON.

There is no authentication: everybody who can reach the port can give orders. Each flag
--x-y can be set as FLEET_WORKER_X_Y in the environment.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(cfg.Validate(), cli.Loopback(cfg.Listen, insecure)); err != nil {
				return cli.Exit(cli.ExitUsage, err)
			}
			cfg.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			ctx, cancel := cli.UntilEOF(cmd, untilEOF)
			defer cancel()
			return runWorker(ctx, cmd, cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.ID, "id", "", "name of the worker among its peers")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:7430", "host:port to serve on; port 0 is a free one")
	f.StringSliceVar(&cfg.Hosts, "hosts", nil, "further host names by which callers reach it, besides localhost and IP addresses")
	f.BoolVar(&insecure, "insecure", false, "listen beyond loopback, where everybody can give orders")
	f.StringVar(&cfg.Dir, "dir", "", "existing directory for the mark and the orders of this worker only")
	f.IntVar(&cfg.Running, "running", 0, "how many orders run at once, standing ones not counted (default 8)")
	f.IntVar(&cfg.Waiting, "waiting", 0, "how many orders may wait (default 10000)")
	f.IntVar(&cfg.Standing, "standing", 0, "how many standing orders there may be (default 100)")
	f.IntVar(&cfg.Remember, "remember", 0, "how many finished orders are recognised at least (default 200000)")
	f.Int64Var(&cfg.MaxBody, "max-body", 0, "largest body of a request in bytes (default 8 MiB)")
	f.IntVar(&cfg.HTTP.Connections, "connections", 0, "most open connections (default 4096)")
	f.DurationVar(&cfg.HTTP.Grace, "grace", 0, "how long requests may still take when it stops (default 15s)")
	f.BoolVar(&untilEOF, "until-eof", false, "stop when standard input ends, for programs that start a worker and may die")
	return cmd
}

func runWorker(ctx context.Context, cmd *cobra.Command, cfg worker.Config) error {
	var said error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := worker.Run(ctx, cfg, func(addr string) {
		if said = printReady(cmd, api.Ready{ID: cfg.ID, Addr: addr, URL: "http://" + addr, PID: os.Getpid()}); said != nil {
			cancel()
		}
	})
	if err = errors.Join(err, said); err != nil {
		return cli.Exit(cli.ExitFailure, err)
	}
	return nil
}
