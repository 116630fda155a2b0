package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/server/service"
)

func newCordon(env func(string) (string, bool)) *cobra.Command {
	d := &desk{}
	var reason string
	var sure bool
	cmd := d.verb(&cobra.Command{
		Use:   "cordon NODE",
		Short: "Keep a node from beginning to lead, until further notice",
		Long: `Keep a node from beginning to lead anything, until it is uncordoned: before maintenance,
or when it misbehaves. What it leads now it leads on: see ` + "`tenure step-down`" + `.

It binds those who lead through the service, with ` + "`tenure exec`" + ` or with the library. A
program with the engine's own credentials can opt out.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if reason == "" || len(reason) > operator.MaxReason {
				return cli.Exit(exitUsage, fmt.Errorf("reason: 1 to %d bytes", operator.MaxReason))
			}
			return d.cordon(cmd, args[0], reason, sure)
		},
	}, env, aNode)
	cmd.Flags().StringVar(&reason, "reason", "by an operator", "what those are told whom it concerns")
	cmd.Flags().BoolVar(&sure, "yes", false, "do not ask")
	return cmd
}

func newUncordon(env func(string) (string, bool)) *cobra.Command {
	d := &desk{}
	return d.verb(&cobra.Command{
		Use:   "uncordon NODE",
		Short: "Let a node lead again",
		Args:  cobra.ExactArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return d.cordon(cmd, args[0], "", true) },
	}, env, aNode)
}

func (d *desk) cordon(cmd *cobra.Command, node, why string, sure bool) error {
	if err := nodeValid(node); err != nil {
		return err
	}
	return d.with(cmd, func(ctx context.Context, s operator.Store) error {
		if why != "" {
			cli.Say(cmd, "node %q will not begin to lead anything until it is uncordoned", node)
			if err := cli.Confirm(cmd, sure); err != nil {
				return err
			}
		}
		a, err := s.Cordon(ctx, node, why)
		if err != nil {
			return err
		}
		if why != "" {
			d.leadsOn(ctx, cmd, s, node)
		}
		reason, is := operator.Cordoned(a)
		return nodeSheet().One(cmd.OutOrStdout(), &d.out, service.Node{NodeID: node, Cordoned: is, Reason: reason})
	})
}

// leadsOn says what a cordoned node still leads, as far as that can be seen.
func (d *desk) leadsOn(ctx context.Context, cmd *cobra.Command, s operator.Store, node string) {
	var held []string
	for v, err := range s.Views(ctx, lease.Scope{"*"}, "") {
		if err != nil {
			return
		}
		if v.State == tenure.Led && v.Candidate.ID == node {
			held = append(held, v.Group)
		}
	}
	if len(held) > 0 {
		cli.Say(cmd, "it leads %s, and leads on: `tenure step-down` asks it to give up", strings.Join(held, ", "))
	}
}

func nodeSheet() cli.Sheet[service.Node] {
	return cli.Sheet[service.Node]{
		Columns: []cli.Column[service.Node]{
			{Head: "NODE", Cell: func(n service.Node) string { return n.NodeID }},
			{Head: "CORDONED", Cell: func(n service.Node) string { return yesNo(n.Cordoned) }},
			{Head: "REASON", Cell: func(n service.Node) string { return dash(n.Reason) }},
		},
		Name: func(n service.Node) string { return n.NodeID },
	}
}
