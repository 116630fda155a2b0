package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/server/supervise"
	"github.com/tenurehq/tenure/store"
)

func newOnce(env cli.Env) *cobra.Command {
	cmd := cli.Parent("once", "List or remove the keys of `tenure exec --once`.", newOnceLs(env), newOnceForget(env))
	cmd.Example = `  tenure once ls nightly`
	return cmd
}

func newOnceLs(env cli.Env) *cobra.Command {
	return storecli.New(env, storecli.Spec{
		Use:   "ls [GROUP]",
		Short: "List the keys of `tenure exec --once` that have not expired.",
		Long: `List the keys of ` + "`tenure exec --once`" + ` that have not expired: which node ran the command
last, and whether it ended with 0 (done). A key whose run was interrupted remains in the
state running until a run succeeds or the key expires.`,
		Example: `  tenure once ls nightly`,
		Args:    storecli.Groups(cobra.MaximumNArgs(1)),
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			prefix := supervise.OncePrefix
			if len(args) > 0 {
				prefix = supervise.OnceName(args[0], "")
			}
			var rows []supervise.OnceRecord
			for a, err := range r.AllAttributes(ctx, prefix) {
				if err != nil {
					return err
				}
				if row, valid := supervise.ParseOnce(a, time.Now()); valid {
					rows = append(rows, row)
				}
			}
			if len(rows) == 0 && r.Out.Table() {
				r.Say("no keys of `tenure exec --once`")
			}
			return cli.Table[supervise.OnceRecord]{
				Columns: []string{"GROUP", "KEY", "STATE", "NODE", "TOKEN", "AGE", "EXPIRES"},
				Row: func(r supervise.OnceRecord) []string {
					expires := "never"
					if !r.Until.IsZero() {
						expires = "in " + storecli.Short(time.Until(r.Until))
					}
					return []string{r.Group, r.Key, r.State, r.Node, r.Token, storecli.Age(r.At), expires}
				},
				Name: func(r supervise.OnceRecord) string { return r.Key },
			}.List(r.Out, rows)
		},
	})
}

func newOnceForget(env cli.Env) *cobra.Command {
	var yes bool
	cmd := storecli.New(env, storecli.Spec{
		Use:     "forget GROUP KEY",
		Short:   "Remove a key, so that `tenure exec --once` runs its command again.",
		Example: `  tenure once forget nightly nightly-2026-11-16`,
		Args:    cobra.ExactArgs(2),
		Check: func(args []string) error {
			if !store.ValidName(args[1]) {
				return fmt.Errorf("%.100q is not a key: use 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", args[1])
			}
			return store.CheckGroup(args[0])
		},
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			call, cancel := context.WithTimeout(ctx, r.Call)
			a, err := r.Attributes(call, supervise.OnceName(args[0], args[1]))
			cancel()
			if err != nil {
				return err
			}
			was, valid := supervise.ParseOnce(a, time.Now())
			if !valid {
				return cli.Exit(cli.ExitNo, fmt.Errorf("group %q has no key %q; see `tenure once ls %s`", args[0], args[1], args[0]))
			}
			if err := r.Confirm(yes, "the command of %q in group %q (%s on %s) will run again when it is started", was.Key, was.Group, was.State, was.Node); err != nil {
				return err
			}
			_, err = r.Change(ctx, a.Name, a.Version, func(values map[string]string) error {
				clear(values)
				return nil
			})
			return err
		},
	})
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}
