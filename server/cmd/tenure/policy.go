package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
)

// policyRow is a group's policy.
type policyRow struct {
	Group    string                `json:"group"`
	Declared bool                  `json:"declared"`
	Deleted  bool                  `json:"deleted,omitempty"`
	Version  uint64                `json:"version"`
	Policy   *operator.GroupPolicy `json:"policy"`
}

func policySheet() cli.Sheet[policyRow] {
	millis := func(ms int64) string {
		if ms == 0 {
			return "-"
		}
		return short(time.Duration(ms) * time.Millisecond)
	}
	return cli.Sheet[policyRow]{
		Columns: []cli.Column[policyRow]{
			{Head: "GROUP", Cell: func(r policyRow) string { return r.Group }},
			{Head: "DECLARED", Cell: func(r policyRow) string { return yesNo(r.Declared) }},
			{Head: "MIN TTL", Cell: func(r policyRow) string { return millis(r.Policy.MinTTLMS) }},
			{Head: "MAX TTL", Cell: func(r policyRow) string { return millis(r.Policy.MaxTTLMS) }},
			{Head: "BACKOFF", Cell: func(r policyRow) string { return millis(r.Policy.BackoffMS) }},
			{Head: "MEMBERS", Cell: func(r policyRow) string { return dash(strings.Join(r.Policy.Members, ",")) }},
			{Head: "FENCED", Cell: func(r policyRow) string { return yesNo(*r.Policy.Fenced) }},
			{Head: "VERSION", Cell: func(r policyRow) string { return fmt.Sprint(r.Version) }},
		},
		Name: func(r policyRow) string { return r.Group },
	}
}

func newPolicy(env func(string) (string, bool)) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "See and change what is laid down for a group",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return cli.Exit(exitUsage, errors.New("get or set?"))
		},
	}
	cmd.AddCommand(newPolicyGet(env), newPolicySet(env))
	return cmd
}

func policyOf(group string, a lease.Attributes) policyRow {
	p := operator.ParsePolicy(a)
	return policyRow{Group: group, Declared: p.Declared, Deleted: p.Deleted, Version: a.Version, Policy: p.Wire()}
}

func newPolicyGet(env func(string) (string, bool)) *cobra.Command {
	d := &desk{}
	return d.verb(&cobra.Command{
		Use:   "get GROUP",
		Short: "Show the policy of a group",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := groupsValid(args...); err != nil {
				return err
			}
			return d.with(cmd, func(ctx context.Context, s operator.Store) error {
				call, cancel := context.WithTimeout(ctx, s.Call)
				defer cancel()
				a, err := s.Attributes(call, operator.Group(args[0]))
				if err != nil {
					return err
				}
				if a.Version == 0 {
					cli.Say(cmd, "nothing is laid down for group %q: these are the defaults", args[0])
				}
				return policySheet().One(cmd.OutOrStdout(), &d.out, policyOf(args[0], a))
			})
		},
	}, env, aGroup)
}

func newPolicySet(env func(string) (string, bool)) *cobra.Command {
	d := &desk{}
	var minTTL, maxTTL, backoff time.Duration
	var members []string
	var fenced bool
	var from uint64
	cmd := d.verb(&cobra.Command{
		Use:   "set GROUP",
		Short: "Declare a group, or change its policy",
		Long: `Declare a group, or change what is laid down for it. Flags that are not given leave
their part as it is; a duration of 0, and an empty list, lift it. It binds those who
begin to lead from then on, through the service and with ` + "`tenure exec`" + `.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := groupsValid(args...); err != nil {
				return err
			}
			return d.with(cmd, func(ctx context.Context, s operator.Store) error {
				limits := s.Caps()
				a, err := s.Change(ctx, operator.Group(args[0]), from, func(values map[string]string) error {
					g := operator.ParsePolicy(lease.Attributes{Values: values}).Wire()
					for flag, set := range map[string]func(){
						"min-ttl": func() { g.MinTTLMS = minTTL.Milliseconds() },
						"max-ttl": func() { g.MaxTTLMS = maxTTL.Milliseconds() },
						"backoff": func() { g.BackoffMS = backoff.Milliseconds() },
						"members": func() { g.Members = members },
						"fenced":  func() { g.Fenced = &fenced },
					} {
						if cmd.Flags().Changed(flag) {
							set()
						}
					}
					if err := g.Check(limits, limits.MaxTTL); err != nil {
						return cli.Exit(exitUsage, err)
					}
					next := g.Values(values)
					clear(values)
					for k, v := range next {
						values[k] = v
					}
					return nil
				})
				var changed *operator.VersionError
				if errors.As(err, &changed) {
					return cli.Exit(exitFenced, err)
				}
				if err != nil {
					return err
				}
				return policySheet().One(cmd.OutOrStdout(), &d.out, policyOf(args[0], a))
			})
		},
	}, env, aGroup)
	f := cmd.Flags()
	f.DurationVar(&minTTL, "min-ttl", 0, "shorter TTLs are refused")
	f.DurationVar(&maxTTL, "max-ttl", 0, "longer TTLs are refused")
	f.DurationVar(&backoff, "backoff", 0, "how long a refused candidate is told to wait")
	f.StringSliceVar(&members, "members", nil, "the nodes that may lead; none is every node")
	f.BoolVar(&fenced, "fenced", true, "whether its resources check the token")
	f.Uint64Var(&from, "from-version", 0, "only if the policy is still of this version (default whichever)")
	return cmd
}
