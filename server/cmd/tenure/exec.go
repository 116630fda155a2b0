package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/supervise"
)

const execHelp = `Wait until this process leads GROUP, run the command, and stop it, with everything
that it has started, before anybody else can lead. The command is not given to a shell.
Who leads is agreed on at an election service, ` + "`tenure serve`" + ` on this machine unless
--store names another or an engine.

It finds in its environment TENURE_GROUP, TENURE_NODE, TENURE_DEPLOYMENT,
TENURE_FENCING_TOKEN (give it to whatever you write to, and let that refuse older ones),
TENURE_FENCING_SESSION (a digest of the session that the token was granted to; give it to
whatever you write to as well, and let that refuse an equal token of another session) and
TENURE_TOKEN_FILE, a file of lines key=value with the token and the present deadline.

Before the deadline of the lease it gets SIGTERM, and --grace later SIGKILL, as does all
that it has started, also what was put in the background or in a session of its own
(Linux; elsewhere only what stays in its process group). A second process, the keeper,
sees to it when this one is paused or killed. When the command ends, what it has left
behind is stopped too. Not stopped: what another program started on its behalf (a service
manager, a container engine).

Signals are passed on; a second SIGINT or SIGTERM kills, and after the first the command
is not started again (--restart). At a terminal the command is in the foreground: Ctrl-C
is for it alone, and to force an end send SIGTERM to this process twice.

With --once=KEY a command that ended with 0 is never run again in this group under that
key, by anybody: those who wait end with 0 too. If it fails or is killed half way, the
next in line runs it.

A cordon binds a candidate's name: give one that lasts with --id, such as the host's, or
the next process is not bound.

Exit codes: the command's own; 128+n if it died of signal n; 75 leadership was lost and
the command stopped; 124 not elected in time; 125 something is wrong here (flags, store,
keeper); 126 the command cannot be run; 127 it is not found.`

func newExec(env func(string) (string, bool)) *cobra.Command {
	var c connection
	var cfg supervise.Config
	var quiet bool
	var restart string
	cmd := &cobra.Command{
		Use:   "exec [flags] GROUP -- COMMAND [ARGS…]",
		Short: "Run a command only while leading",
		Long:  execHelp,
		Args:  cobra.ArbitraryArgs, // an error here is ours, 125, and not the usage's
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if cfg.Group, cfg.Args, err = groupAndCommand(args, cmd.ArgsLenAtDash()); err != nil {
				return execError(err)
			}
			switch restart {
			case "never":
			case "on-lost":
				cfg.Restart = true
			default:
				return execError(fmt.Errorf("restart: %q is neither never nor on-lost", restart))
			}
			if cfg.TTL == 0 {
				cfg.TTL = lease.Default().TTL
			}
			if !cmd.Flags().Changed("grace") {
				cfg.Grace = max(0, cfg.TTL/8)
			}
			if err := cfg.Validate(); err != nil {
				return execError(err)
			}
			level := slog.LevelWarn
			cfg.Say = func(format string, args ...any) {
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "tenure: "+format+"\n", args...)
			}
			if quiet {
				level = slog.LevelError
				cfg.Say = func(string, ...any) {}
			}
			cfg.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			cfg.Denied = denied
			cfg.Stdin, cfg.Stdout, cfg.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			store, err := c.open(cmd.Context(), cfg.Log)
			if err != nil {
				return execError(err)
			}
			defer store.Close()
			return execError(supervise.Run(cmd.Context(), store.Store, cfg))
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return execError(err) })
	f := cmd.Flags()
	f.StringVar(&cfg.ID, "id", defaultID(), "this candidate's name")
	f.DurationVar(&cfg.TTL, "ttl", 0, "how long a crash of this process leaves the group without a leader (default 8s)")
	f.DurationVar(&cfg.Grace, "grace", 0, "time between SIGTERM and SIGKILL; 0s: no SIGTERM (default an eighth of the TTL)")
	f.DurationVar(&cfg.Wait, "wait", 0, "how long to stand in line (default for ever)")
	f.BoolVar(&cfg.NoWait, "no-wait", false, "do not stand in line: end with 124 if another leads")
	f.StringVar(&restart, "restart", "never", "never, or on-lost: stand in line again when leadership was lost")
	f.StringVar(&cfg.Once, "once", "", "run it to its end once for all under this key")
	f.BoolVarP(&quiet, "quiet", "q", false, "only errors on standard error")
	c.flags(f, env)
	return cmd
}

// groupAndCommand takes the arguments apart: GROUP, the dashes, the command.
func groupAndCommand(args []string, dash int) (string, []string, error) {
	switch {
	case len(args) == 0 || dash == 0:
		return "", nil, errors.New("which group? tenure exec GROUP -- COMMAND ARGS…")
	case dash < 0 && len(args) > 1, dash > 1:
		return "", nil, errors.New("the command stands behind two dashes, so that its flags are not taken for ours: tenure exec GROUP -- COMMAND ARGS…")
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

// defaultID is the host's name and this process's number.
func defaultID() string {
	host, _ := os.Hostname()
	suffix := "-" + strconv.Itoa(os.Getpid())
	var b strings.Builder
	for _, c := range strings.ToLower(host) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || b.Len() > 0 && (c == '-' || c == '.') {
			b.WriteRune(c)
		}
	}
	const longest = 63
	name := b.String()
	if name = name[:min(len(name), longest-len(suffix))]; name == "" {
		name = "node"
	}
	return name + suffix
}
