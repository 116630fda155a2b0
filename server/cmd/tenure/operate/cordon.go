package operate

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/server/service"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/store"
)

func newCordon(env cli.Env) *cobra.Command {
	var reason string
	var yes bool
	cmd := storecli.New(env, storecli.Spec{
		Use:   "cordon NODE",
		Short: "Keep a node from new terms until it is uncordoned.",
		Long: `Keep a node from leading any further group until it is uncordoned: before maintenance,
or when it misbehaves. It keeps the groups that it leads now; see ` + "`tenure step-down`" + `.

A cordon applies to nodes that lead through the service, with ` + "`tenure exec`" + ` or with the
library. A program with credentials for the engine can ignore it.`,
		Example:  `  tenure cordon node-1 --reason='disk is failing'`,
		Args:     cobra.ExactArgs(1),
		Complete: []storecli.Completion{storecli.CompleteNode},
		Check: func(args []string) error {
			if reason == "" || len(reason) > operator.MaxReason {
				return fmt.Errorf("reason: must be 1 to %d bytes", operator.MaxReason)
			}
			return storecli.CheckNode(args[0])
		},
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			if err := r.Confirm(yes, "node %q will lead no further group until it is uncordoned", args[0]); err != nil {
				return err
			}
			return setCordon(ctx, r, args[0], reason)
		},
	})
	cmd.Flags().StringVar(&reason, "reason", "by an operator", "reason that the node and its users are told")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}

func newUncordon(env cli.Env) *cobra.Command {
	return storecli.New(env, storecli.Spec{
		Use:      "uncordon NODE",
		Short:    "Remove a cordon.",
		Example:  `  tenure uncordon node-1`,
		Args:     cobra.ExactArgs(1),
		Complete: []storecli.Completion{storecli.CompleteNode},
		Check:    func(args []string) error { return storecli.CheckNode(args[0]) },
		Run:      func(ctx context.Context, r *storecli.Run, args []string) error { return setCordon(ctx, r, args[0], "") },
	})
}

// setCordon sets a cordon, or removes it if there is no reason.
func setCordon(ctx context.Context, r *storecli.Run, node, reason string) error {
	a, err := r.Cordon(ctx, node, reason)
	if err != nil {
		return err
	}
	if reason != "" {
		if held := leads(ctx, r, node); len(held) > 0 {
			r.Say("it still leads %s; `tenure step-down` asks it to give up", strings.Join(held, ", "))
		}
	}
	reason, cordoned := operator.Cordoned(a)
	table := cli.Table[service.Node]{
		Columns: []string{"NODE", "CORDONED", "REASON"},
		Row: func(n service.Node) []string {
			return []string{n.NodeID, storecli.YesNo(n.Cordoned), storecli.Dash(n.Reason)}
		},
		Name: func(n service.Node) string { return n.NodeID },
	}
	return table.One(r.Out, service.Node{NodeID: node, Cordoned: cordoned, Reason: reason})
}

// leads lists the groups that a node leads, as far as the caller may see them.
func leads(ctx context.Context, r *storecli.Run, node string) (groups []string) {
	for v, err := range r.Views(ctx, store.Scope{"*"}, "") {
		if err != nil {
			return nil
		}
		if v.State == tenure.Led && v.Candidate.ID == node {
			groups = append(groups, v.Group)
		}
	}
	return groups
}
