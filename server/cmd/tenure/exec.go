package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/server/supervise"
	"github.com/tenurehq/tenure/server/supervise/keeper"
	"github.com/tenurehq/tenure/store"
)

const execHelp = `Wait until this process leads GROUP, then run the command. Stop the command, and every
process that it started, before another process can lead. No shell is involved. The store
of the elections is ` + "`tenure serve`" + ` on this machine unless --store names another. If the
store cannot be reached, exec retries within --wait.

The command gets these environment variables: TENURE_GROUP, TENURE_NODE,
TENURE_DEPLOYMENT, TENURE_FENCING_TOKEN (send it with every write, so that the resource
can refuse older tokens), TENURE_FENCING_SESSION (a digest of the session that holds the
token; send it too, so that the resource can refuse the same token from another session)
and TENURE_FENCING_FILE, a file of key=value lines with the token and the current deadline.

Before the lease expires, the command and all processes that it started get SIGTERM, and
SIGKILL after --grace. On Linux this includes background processes and those in sessions
of their own; elsewhere only the command's process group. A second process, the keeper,
does this if this one is paused or killed. If this one was killed, and no process of the
command is left, the keeper closes the session, so that another node can lead long before
the TTL is over. If the keeper does not respond, this process
kills the command before the lease expires. When the command ends, processes that it left
behind are stopped too. Processes that another program started for the command (a service
manager, a container engine) are not stopped.

If this process and the keeper are killed together, background processes of the command
keep running. --isolate prevents that on Linux: the command runs in a pid namespace whose
init is the keeper, and the kernel kills every process in it with the keeper. It has its
own /proc, and mounts that it makes are not visible outside. Without root it runs in a
user namespace too, where sudo and other setuid programs do not work. A systemd unit
prevents it without --isolate: systemd kills the cgroup of a unit that ends.

Signals are passed to the command. A second SIGINT or SIGTERM kills it, and so does the end
of --stop-timeout after the first; after the first one it is not restarted (--restart). At
a terminal the command is in the foreground, and only it gets Ctrl-C; to kill it, send
SIGTERM to this process twice.

With --once=KEY a command that ended with 0 does not run again in this group under that
key: processes that wait for the group, or are started later, end with 0 too. The command
runs at least once: if it fails, or its host crashes, the next leader runs it again, so it
must tolerate that. The key expires after --once-for. ` + "`tenure once ls`" + ` lists the keys.
For cron, put the date into the key; in a crontab write \% for %.

A cordon applies to a node id. Set --id to a name that survives a restart, such as the
host's, or the next process is not cordoned.

Exit codes: that of the command; 128+n if signal n ended it; 75 leadership was lost and
the command was stopped; 124 not elected in time; 125 exec itself failed (flags, store,
keeper); 126 the command cannot be run; 127 it was not found.`

func newExec(env cli.Env) *cobra.Command {
	var conn storecli.Connection
	var cfg supervise.Config
	var quiet bool
	var restart string
	run := func(cmd *cobra.Command, args []string) (err error) {
		if cfg.Group, cfg.Args, err = groupAndCommand(args, cmd.ArgsLenAtDash()); err != nil {
			return err
		}
		if restart != "never" && restart != "on-lost" {
			return fmt.Errorf("restart: %q is neither never nor on-lost", restart)
		}
		cfg.Restart = restart == "on-lost"
		if cfg.TTL == 0 {
			cfg.TTL = lease.Default().TTL
		}
		if !cmd.Flags().Changed("grace") {
			cfg.Grace = max(0, cfg.TTL/8)
		}
		if err := cfg.Validate(); err != nil {
			return err
		}
		cfg.Say = func(format string, args ...any) { cli.Say(cmd, "tenure: "+format, args...) }
		if quiet {
			cfg.Say = func(string, ...any) {}
		}
		cfg.Stdin, cfg.Stdout, cfg.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
		st, err := connect(cmd.Context(), &conn, &cfg, storecli.Logger(cmd.ErrOrStderr(), slog.LevelError))
		if err != nil {
			return err
		}
		defer st.Close()
		if !conn.Dev { // the engine of --dev ends with this process
			if cfg.Settings, err = json.Marshal(conn); err != nil {
				return err
			}
		}
		return supervise.Run(cmd.Context(), st.Store, cfg)
	}
	cmd := &cobra.Command{
		Use:   "exec [flags] GROUP -- COMMAND [ARGS…]",
		Short: "Run a command only while leading a group.",
		Long:  execHelp,
		Example: `  tenure exec billing -- ./reconcile.sh --all
  tenure exec --once=nightly-$(date +%F) nightly -- backup /var/lib/app     # from cron, on every host
  tenure exec --once=schema-42 --once-for=0s migrations -- ./migrate.sh
  tenure exec --store=etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379 billing -- ./reconcile.sh`,
		Args: cobra.ArbitraryArgs, // run checks them, because a usage error is 125 here
		RunE: func(cmd *cobra.Command, args []string) error { return execError(run(cmd, args)) },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return execError(err) })
	f := cmd.Flags()
	f.StringVar(&cfg.ID, "id", defaultID(), "node id of this candidate")
	f.IntVar(&cfg.Priority, "priority", 0, "of the candidates that wait, those with a higher priority are elected first")
	f.DurationVar(&cfg.TTL, "ttl", 0, "how long a crash of this host leaves the group without a leader (default 8s)")
	f.DurationVar(&cfg.Grace, "grace", 0, "time between SIGTERM and SIGKILL when the lease expires; 0s: no SIGTERM (default TTL/8)")
	f.DurationVar(&cfg.StopTimeout, "stop-timeout", 0, "kill a command that runs this long after SIGINT or SIGTERM to this process (default: do not)")
	f.BoolVar(&cfg.Isolate, "isolate", false, "run the command in a pid namespace: the kernel kills all its processes if the keeper dies")
	f.DurationVar(&cfg.Wait, "wait", 0, "how long to wait for the store and for leadership (default: without limit)")
	f.BoolVar(&cfg.NoWait, "no-wait", false, "do not wait: exit with 124 if another node leads, with 125 if the store cannot be reached")
	f.StringVar(&restart, "restart", "never", "never, or on-lost: wait for leadership again after it was lost")
	f.StringVar(&cfg.Once, "once", "", "run the command until it ended with 0 once under this key, on whichever host")
	f.DurationVar(&cfg.OnceFor, "once-for", 30*24*time.Hour, "how long the key is kept; 0s: for ever")
	f.BoolVarP(&quiet, "quiet", "q", false, "print only errors")
	conn.Flags(f, env)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 { // the command
			return nil, cobra.ShellCompDirectiveDefault
		}
		return storecli.Complete(&conn, env, storecli.CompleteGroup)(cmd, args, prefix)
	}
	return cmd
}

// endSession closes the session of an exec that has died, in its keeper. It retries until ctx ends.
func endSession(ctx context.Context, c keeper.Close) error {
	var conn storecli.Connection
	conn.Flags(pflag.NewFlagSet("", pflag.ContinueOnError), os.LookupEnv) // the credential
	if err := json.Unmarshal(c.Settings, &conn); err != nil {
		return err
	}
	var first error
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := endOnce(ctx, &conn, c.Session)
		if err == nil {
			return nil
		}
		first = cmp.Or(first, err)
		if ctx.Err() != nil {
			return first
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

func endOnce(ctx context.Context, conn *storecli.Connection, id store.SessionID) error {
	st, err := conn.Open(ctx, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer st.Close()
	ctx, cancel := context.WithTimeout(ctx, conn.Timeout)
	defer cancel()
	return st.End(ctx, id, store.Died)
}

// connect opens the store, and retries within cfg.Wait while the store cannot be reached. It
// takes that time off cfg.Wait.
func connect(ctx context.Context, conn *storecli.Connection, cfg *supervise.Config, log *slog.Logger) (*storecli.Opened, error) {
	began := time.Now()
	if cfg.Wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cfg.Wait)
		defer cancel()
	}
	const minPause, maxPause = 20 * time.Millisecond, 500 * time.Millisecond
	var first error // the later ones can be about the time that is left
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		st, err := conn.Open(ctx, log)
		var exit *cli.ExitError
		switch {
		case err == nil:
			if cfg.Wait > 0 {
				cfg.Wait = max(1, cfg.Wait-time.Since(began))
			}
			return st, nil
		case !errors.As(err, &exit) || exit.Code != cli.ExitUnavailable || cfg.NoWait || conn.Dev:
			return nil, err
		case ctx.Err() != nil:
			return nil, &supervise.CodeError{Code: supervise.CodeNotInTime, Err: fmt.Errorf("the store cannot be reached within %v; the command was not run: %w", cfg.Wait, withoutRemedy(cmp.Or(first, err)))}
		case pause == minPause:
			cfg.Say("cannot reach the store, retrying: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		first = cmp.Or(first, err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// withoutRemedy returns an error without the remedy, which was printed before.
func withoutRemedy(err error) error {
	var none *storecli.NoServiceError
	if errors.As(err, &none) {
		return none.Err
	}
	return err
}

const execUsage = "usage: tenure exec [flags] GROUP -- COMMAND [ARGS…]"

// groupAndCommand splits the arguments: GROUP, the dashes, the command.
func groupAndCommand(args []string, dash int) (string, []string, error) {
	switch {
	case len(args) == 0 || dash == 0:
		return "", nil, errors.New("missing group; " + execUsage)
	case dash < 0 && len(args) > 1, dash > 1:
		return "", nil, errors.New("missing -- before the command; " + execUsage)
	}
	return args[0], args[1:], nil
}

// execError gives an error the exit code that exec has for it.
func execError(err error) error {
	var code *supervise.CodeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &code):
		return cli.Exit(code.Code, code.Err) // Err is nil if the command ran and failed
	default:
		return cli.Exit(supervise.CodeFailed, err)
	}
}

// defaultID is the host name and the process id.
func defaultID() string {
	host, _ := os.Hostname()
	name := strings.TrimLeft(strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' {
			return c
		}
		return -1
	}, strings.ToLower(host)), "-.")
	suffix := "-" + strconv.Itoa(os.Getpid())
	const longest = 63
	if name = name[:min(len(name), longest-len(suffix))]; name == "" {
		name = "node"
	}
	return name + suffix
}
