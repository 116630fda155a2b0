package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node"
	"github.com/tenurehq/tenure/reference/node/nodehttp"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/store"
)

// passwordVariable holds the password of the engine's user. A flag would show it to other users.
const passwordVariable = "FLEET_NODE_PASSWORD"

// Node returns the command that runs a node. extend may be nil. It adds flags and returns a
// function that completes the configuration when the flags are known. That function returns
// one that is called at the end.
func Node(env func(string) (string, bool), extend func(*pflag.FlagSet, *node.Config) func() (end func(), err error)) *cobra.Command {
	var cfg node.Config
	var passwordFile, keeper string
	var untilEOF, verbose bool
	var complete func() (func(), error)
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run a node: it campaigns, and does the leader's work while it leads",
		Long: `Run a node as a process. It joins its fleet, campaigns, and does the leader's work while
it leads. It waits for the ledger and the engine. When it serves, it prints one line of
JSON.

The first SIGINT or SIGTERM hands the group over and stops the node; the second ends the
process. The exit code is 75 if the work did not stop in time. The password of the engine's
user is read from --password-file or from ` + passwordVariable + `.`,
		Example: `  fleet node --id node-1 --group billing --store etcd://127.0.0.1:2379 --ledger http://127.0.0.1:7420
  fleet node --id n1 --group billing --store raft --peers n1=10.0.0.1:7400,n2=10.0.0.2:7400,n3=10.0.0.3:7400 --data-dir d --ledger http://…
  fleet node --id alone --group billing --store mem --ledger http://127.0.0.1:7420`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			cfg.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			cfg.Exit = os.Exit
			cfg.Password, _ = env(passwordVariable)
			if passwordFile != "" {
				data, err := os.ReadFile(passwordFile)
				if err != nil {
					return cli.Exit(cli.ExitUsage, fmt.Errorf("password-file: %w", err))
				}
				cfg.Password = strings.TrimSpace(string(data))
			}
			if complete != nil {
				end, err := complete()
				if err != nil {
					return cli.Exit(cli.ExitUsage, err)
				}
				defer end()
			}
			if err := cfg.Validate(); err != nil {
				return cli.Exit(cli.ExitUsage, err)
			}
			end, err := withKeeper(keeper, &cfg)
			if err != nil {
				return cli.Exit(cli.ExitUsage, err)
			}
			defer end()
			ctx, cancel := cli.UntilEOF(cmd, untilEOF)
			defer cancel()
			return runNode(ctx, cmd, cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.ID, "id", "", "name of this node in its fleet")
	f.StringVar(&cfg.Group, "group", "", "what the fleet elects a leader of, and the ledger's resource")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:0", "host:port to serve on; port 0 is a free one")
	f.StringVar(&cfg.Advertise, "advertise", "", "URL at which others reach this node (default that of --listen)")
	f.StringSliceVar(&cfg.Hosts, "hosts", nil, "further names by which callers reach this node, besides localhost and IP addresses")
	f.BoolVar(&cfg.Insecure, "insecure", false, "listen beyond loopback, where everybody can call")
	f.StringVar(&cfg.Store, "store", "", "engine of the elections: its URL, such as etcd://user@host:port,host:port/prefix or postgres://user@host/database; raft; or mem for a single node")
	f.StringVar(&passwordFile, "password-file", "", "file with the password of the engine's user")
	f.StringVar(&cfg.TLS.Cert, "cert", "", "PEM file with the certificate for etcd or for the Raft peers")
	f.StringVar(&cfg.TLS.Key, "key", "", "PEM file with its key")
	f.StringVar(&cfg.TLS.CA, "ca", "", "PEM file with the authority that signs the certificates of the others")
	f.Func("peers", "all Raft nodes as id=host:port,id=host:port,…", Peers(&cfg.Peers))
	f.StringVar(&cfg.DataDir, "data-dir", "", "directory of the Raft log and votes")
	f.DurationVar(&cfg.ElectionTimeout, "election-timeout", 0, "how long a Raft follower waits for its leader (default 1s)")
	f.StringVar(&cfg.Ledger, "ledger", "", "URL of the ledger")
	f.StringSliceVar(&cfg.Workers, "workers", nil, "URLs of the workers")
	f.DurationVar(&cfg.TTL, "lease-ttl", 0, "how long a session outlives its last keep-alive: what a crash costs (default 8s)")
	f.DurationVar(&cfg.Beat, "renew-interval", 0, "time between keep-alives (default a quarter of the TTL)")
	f.IntVar(&cfg.Misses, "misses", 0, "keep-alives in a row that may fail before a warning is logged (default 3)")
	f.StringVar(&keeper, "keeper", "off", "end the session at once if this process dies: auto starts a keeper (Linux), a path is the socket of `tenure keeper`, off waits for the TTL")
	f.DurationVar(&cfg.Tick, "tick", 0, "time between the scheduler's ticks (default 1s)")
	f.DurationVar(&cfg.MisfireGrace, "misfire-grace", 0, "how late a firing may be without being a misfire (default two ticks, at least 2s)")
	f.DurationVar(&cfg.RTO, "rto", 0, "time that a failover may take; each phase has its share (default 30s)")
	f.DurationVar(&cfg.SinkPatience, "sink-patience", 0, "how long the ledger may be unreachable before the leader steps down (default the TTL)")
	f.DurationVar(&cfg.WriteTimeout, "write-timeout", 0, "longest write of the leader (default the TTL, from 1s to 5s)")
	f.DurationVar(&cfg.StopTimeout, "stop-timeout", 0, "longest handover when the node is asked to stop; then the process ends (default the TTL)")
	f.IntVar(&cfg.Batch, "batch", 0, "most callers of /next that share a write; 1 commits each call alone (default 8192)")
	f.StringVar(&cfg.AdminCredentialFile, "admin-credential-file", "", "file with the credential for /resign and /transfer from other hosts")
	f.IntVar(&cfg.HTTP.Connections, "connections", 0, "most open connections (default 4096)")
	f.BoolVar(&untilEOF, "until-eof", false, "stop when standard input ends, for programs that start a node and may die")
	f.BoolVarP(&verbose, "verbose", "v", false, "log more")
	if extend != nil {
		complete = extend(f, &cfg)
	}
	return cmd
}

func runNode(ctx context.Context, cmd *cobra.Command, cfg node.Config) error {
	logged := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(logged)
		if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
			cfg.Log.Info("stopping", "node", cfg.ID, "cause", cause)
		}
	})
	err := nodehttp.Run(ctx, cfg, func(line api.Ready) error { return printReady(cmd, line) })
	if !stop() {
		<-logged // the process exits next
	}
	var config *node.ConfigError
	var argument *store.ArgumentError
	var peers *raft.ConfigError
	switch {
	case err == nil, ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return nil // in the second case it was asked to stop before it was ready
	case errors.As(err, &config), errors.As(err, &argument), errors.As(err, &peers):
		return cli.Exit(cli.ExitUsage, err)
	case errors.Is(err, ledgerapi.ErrUnavailable), errors.Is(err, node.ErrEngine):
		return cli.Exit(cli.ExitUnavailable, err)
	}
	return cli.Exit(cli.ExitFailure, err)
}

// Peers returns the parser of a flag id=host:port,id=host:port,…
func Peers(to *map[string]string) func(string) error {
	return func(s string) error {
		*to = map[string]string{}
		for item := range strings.SplitSeq(s, ",") {
			id, address, ok := strings.Cut(strings.TrimSpace(item), "=")
			if !ok {
				return fmt.Errorf("%q is not id=host:port", item)
			}
			if _, twice := (*to)[id]; twice {
				return fmt.Errorf("%q is named twice", id)
			}
			(*to)[id] = address
		}
		return nil
	}
}
