// Package storecli is the scaffolding of commands that work on a store: the flags that
// name it, its connection, exit codes of its errors, completion of arguments, and output.
package storecli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/store"
)

// Spec describes a command that works on a store.
type Spec struct {
	Use, Short, Long, Example string
	// Args checks the arguments. Default: none.
	Args cobra.PositionalArgs
	// Complete completes the arguments; the last entry also completes further ones. Default:
	// groups.
	Complete []Completion
	// Check, if set, checks the flags before the store is opened. Its errors are usage errors.
	Check func(args []string) error
	Run   func(ctx context.Context, r *Run, args []string) error
}

// Run is one run of a command. Errors of the store get their exit codes after it.
type Run struct {
	operator.Store
	Cmd *cobra.Command
	Out *cli.Output
}

// New makes a command, with the flags of a Connection and -o.
func New(env cli.Env, s Spec) *cobra.Command {
	var conn Connection
	var out cli.Output
	cmd := &cobra.Command{Use: s.Use, Short: s.Short, Long: s.Long, Example: s.Example, Args: s.Args}
	if s.Args == nil {
		cmd.Args = cobra.NoArgs
	}
	if s.Complete == nil {
		s.Complete = []Completion{CompleteGroup}
	}
	conn.Flags(cmd.Flags(), env)
	out.Flag(cmd, env)
	cmd.ValidArgsFunction = Complete(&conn, env, s.Complete...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := out.Open(cmd); err != nil {
			return err
		}
		if conn.Timeout <= 0 {
			return cli.Usage("timeout: %v must be positive", conn.Timeout)
		}
		if s.Check != nil {
			if err := s.Check(args); err != nil {
				return cli.Exit(cli.ExitUsage, err)
			}
		}
		ctx := cmd.Context()
		o, err := conn.Open(ctx, Logger(cmd.ErrOrStderr(), slog.LevelWarn))
		if err != nil {
			return err
		}
		defer o.Close()
		err = s.Run(ctx, &Run{operator.Store{Store: o.Store, Call: conn.Timeout}, cmd, &out}, args)
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = context.Cause(ctx)
		}
		return exitError(err)
	}
	return cmd
}

// Logger logs as text.
func Logger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// Say prints a line on standard error.
func (r *Run) Say(format string, args ...any) { cli.Say(r.Cmd, format, args...) }

// Confirm says what will happen and asks whether to continue, unless yes is set.
func (r *Run) Confirm(yes bool, format string, args ...any) error {
	r.Say(format, args...)
	return cli.Confirm(r.Cmd, yes)
}

// ReadGroup reads a group within the time for one call.
func (r *Run) ReadGroup(ctx context.Context, group string) (store.View, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Call)
	defer cancel()
	return r.Read(ctx, group)
}

// Groups also checks that every argument is the name of a group.
func Groups(count cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := count(cmd, args); err != nil {
			return err
		}
		for _, g := range args {
			if err := store.CheckGroup(g); err != nil {
				return cli.Exit(cli.ExitUsage, err)
			}
		}
		return nil
	}
}

// Scope checks that the arguments are patterns of groups.
func Scope(_ *cobra.Command, args []string) error {
	if err := ScopeOf(args).Validate(); err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	return nil
}

// ScopeOf returns the patterns in the arguments; without arguments, every group.
func ScopeOf(args []string) store.Scope {
	if len(args) == 0 {
		return store.Scope{"*"}
	}
	return args
}

// CheckNode refuses what is not the name of a node.
func CheckNode(name string) error {
	if !store.ValidName(name) {
		return cli.Usage("%.100q is not a node name: use 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", name)
	}
	return nil
}

// NoLeader is the error of a command that needs a leader.
func NoLeader(v store.View) error {
	if v.Token == 0 {
		return cli.Exit(cli.ExitNo, fmt.Errorf("group %q has no leader, and never had one; see `tenure candidates %s`", v.Group, v.Group))
	}
	last := ""
	if n := len(v.Terms); n > 0 {
		last = fmt.Sprintf(": the term of %s has ended (%s)", v.Terms[n-1].Candidate, v.Leader().Reason)
	}
	return cli.Exit(cli.ExitNo, fmt.Errorf("group %q has no leader (newest token %d)%s; see `tenure candidates %s` and `tenure history %s`", v.Group, v.Token, last, v.Group, v.Group))
}

// Age formats the time since t.
func Age(t time.Time) string {
	if t.IsZero() {
		return cli.Empty
	}
	return Short(time.Since(t))
}

// Short formats a duration with about two digits.
func Short(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// Millis formats a number of milliseconds as Short does; 0 is "-".
func Millis(ms int64) string {
	if ms == 0 {
		return cli.Empty
	}
	return Short(time.Duration(ms) * time.Millisecond)
}

// Dash replaces an empty cell.
func Dash(s string) string {
	return cmp.Or(s, cli.Empty)
}

// YesNo formats a boolean.
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
