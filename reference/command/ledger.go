package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/client"
	"github.com/tenurehq/tenure/reference/ledger/ledgerhttp"
	"github.com/tenurehq/tenure/server/cli"
)

// LedgerReady is the line that a ledger prints on standard output when it serves.
type LedgerReady struct {
	Addr    string `json:"addr"`
	URL     string `json:"url"`
	Fencing bool   `json:"fencing"`
	PID     int    `json:"pid"`
}

// Ledger returns the command that runs a ledger. extend may be nil; it adds flags.
func Ledger(extend func(*pflag.FlagSet, *ledgerhttp.Config)) *cobra.Command {
	var cfg ledgerhttp.Config
	var insecure, untilEOF bool
	cmd := &cobra.Command{
		Use:   "ledger",
		Short: "Run the fenced resource: ticks, sequences, checkpoints and records that a stale leader cannot write",
		Long: `Run the fenced resource as a process. Leaders write to it over HTTP with their fencing
token. It refuses every token below the highest that it has seen, in the same
transaction as the write. When it serves, it prints one line of JSON.

There is no authentication: everybody who can reach the port can write. Each flag --x-y
can be set as FLEET_LEDGER_X_Y in the environment.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(cfg.Validate(), cli.Loopback(cfg.Listen, insecure)); err != nil {
				return cli.Exit(cli.ExitUsage, err)
			}
			cfg.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			ctx, cancel := cli.UntilEOF(cmd, untilEOF)
			defer cancel()
			return serveLedger(ctx, cmd, cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:7420", "host:port to serve on; port 0 is a free one")
	f.StringSliceVar(&cfg.Hosts, "hosts", nil, "further host names by which callers reach it, besides localhost and IP addresses")
	f.BoolVar(&insecure, "insecure", false, "listen beyond loopback, where everybody can write")
	f.StringVar(&cfg.DB, "db", "tenure-ledger.db", "path of a SQLite file, created if missing, or a postgres:// URL")
	f.DurationVar(&cfg.ActingWindow, "acting-window", 0, "how far back leaders_acting looks (default 2s)")
	f.IntVar(&cfg.Rejections, "rejections", 0, "how many refused writes are kept (default 1000)")
	f.IntVar(&cfg.History, "history", 0, "how many ticks and delivered firings of a resource and allocations of a sequence are kept (default 1000000)")
	f.IntVar(&cfg.Shared, "shared", 0, "how many shared records there may be (default 100000)")
	f.IntVar(&cfg.Resources, "resources", 0, "how many resources there may be (default 10000)")
	f.IntVar(&cfg.Group, "group", 0, "most batches that share a commit (default 1024)")
	f.IntVar(&cfg.Queue, "queue", 0, "how many batches may wait for their commit (default 4096)")
	f.IntVar(&cfg.QueueBytes, "queue-bytes", 0, "most bytes that may wait for their commit (default 64 MiB)")
	f.DurationVar(&cfg.Timeout, "timeout", 0, "longest transaction on PostgreSQL, longest read (default 10s)")
	f.Int64Var(&cfg.MaxBody, "max-body", 0, "largest body of a request in bytes (default 4 MiB)")
	f.IntVar(&cfg.HTTP.Connections, "connections", 0, "most open connections (default 4096)")
	f.DurationVar(&cfg.HTTP.Grace, "grace", 0, "how long requests may still take when it stops (default 15s)")
	f.BoolVar(&untilEOF, "until-eof", false, "stop when standard input ends, for programs that start a ledger and may die")
	if extend != nil {
		extend(f, &cfg)
	}
	cmd.AddCommand(newLedgerAccept())
	return cmd
}

func newLedgerAccept() *cobra.Command {
	var at, replaces, by string
	var yes bool
	cmd := &cobra.Command{
		Use:   "accept",
		Short: "Accept the state of a ledger that has lost data",
		Long: `Accept the state of a ledger that was restored from an older backup, or that is new and
replaces another. Until then it accepts no writes, because callers have seen more than it
has. Restore the lost data instead if you can: after this it is lost for good, and numbers
that were given out may be given out again unless the nodes have been running all the time.

Run it on the machine of the ledger. The ledger records and logs it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			c, err := client.New(client.Config{URL: at, Holder: by})
			if err != nil {
				return cli.Exit(cli.ExitUsage, err)
			}
			defer c.Close()
			if replaces == "" {
				cli.Say(cmd, "the ledger at %s will accept writes again in its present state", at)
			} else {
				cli.Say(cmd, "the ledger at %s will replace ledger %s", at, replaces)
			}
			if err := cli.Confirm(cmd, yes); err != nil {
				return err
			}
			now, err := c.Accept(ctx, replaces)
			var wrong *api.RequestError
			switch {
			case errors.As(err, &wrong):
				return cli.Exit(cli.ExitUsage, err)
			case errors.Is(err, api.ErrUnavailable):
				return cli.Exit(cli.ExitUnavailable, err)
			case err != nil:
				return cli.Exit(cli.ExitFailure, err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "ledger %s revision %d\n", now.ID, now.Revision)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&at, "ledger", "http://127.0.0.1:7420", "URL of the ledger")
	f.StringVar(&replaces, "replaces", "", "id of the ledger that it replaces, as the refused callers log it (default its own)")
	f.StringVar(&by, "by", os.Getenv("USER"), "who accepts it, for the record")
	f.BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func serveLedger(ctx context.Context, cmd *cobra.Command, cfg ledgerhttp.Config) error {
	err := ledgerhttp.Serve(ctx, cfg, func(addr string) error {
		return printReady(cmd, LedgerReady{Addr: addr, URL: "http://" + addr, Fencing: !cfg.Unfenced, PID: os.Getpid()})
	})
	var wrong *ledger.ConfigError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong):
		return cli.Exit(cli.ExitUsage, err)
	case errors.Is(err, api.ErrUnavailable):
		return cli.Exit(cli.ExitUnavailable, err)
	}
	return cli.Exit(cli.ExitFailure, err)
}
