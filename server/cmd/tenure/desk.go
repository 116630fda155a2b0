package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
)

// desk is what the verbs of an operator have in common: a store, and a way to print.
type desk struct {
	env  func(string) (string, bool)
	conn connection
	out  cli.Output
}

// verb gives a command the flags of a desk, and groups as the completion of its arguments.
func (d *desk) verb(cmd *cobra.Command, env func(string) (string, bool), completions ...completion) *cobra.Command {
	d.env = env
	d.conn.flags(cmd.Flags(), env)
	d.out.Flag(cmd, env)
	cmd.ValidArgsFunction = d.complete(completions)
	return cmd
}

// with runs f on the store, and closes it.
func (d *desk) with(cmd *cobra.Command, f func(context.Context, operator.Store) error) error {
	if err := d.out.Validate(); err != nil {
		return cli.Exit(exitUsage, err)
	}
	if d.conn.timeout <= 0 {
		return cli.Exit(exitUsage, fmt.Errorf("timeout: %v must be positive", d.conn.timeout))
	}
	ctx := cmd.Context()
	o, err := d.conn.open(ctx, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	defer o.Close()
	err = f(ctx, operator.Store{Store: o.Store, Call: d.conn.timeout})
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = context.Cause(ctx)
	}
	return storeError(err)
}

// groups checks names of groups before anybody is asked.
func groupsValid(names ...string) error {
	for _, g := range names {
		if err := lease.CheckGroup(g); err != nil {
			return cli.Exit(exitUsage, err)
		}
	}
	return nil
}

func nodeValid(name string) error {
	if !lease.ValidName(name) {
		return cli.Exit(exitUsage, fmt.Errorf("%.100q is no name of a node", name))
	}
	return nil
}

// say narrates on standard error.

// age is for people.
func age(since time.Time) string {
	if since.IsZero() {
		return "-"
	}
	return short(time.Since(since))
}

// short writes a duration in two figures or so.
func short(d time.Duration) string {
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

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
