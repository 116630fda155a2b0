package operate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/store"
)

// policyRow is the policy of a group.
type policyRow struct {
	Group    string                `json:"group"`
	Declared bool                  `json:"declared"`
	Deleted  bool                  `json:"deleted,omitempty"`
	Version  uint64                `json:"version"`
	Policy   *operator.GroupPolicy `json:"policy"`
}

var policyTable = cli.Table[policyRow]{
	Columns: []string{"GROUP", "STATE", "MIN TTL", "MAX TTL", "BACKOFF", "MEMBERS", "FENCED", "MAY BE VACANT", "VERSION"},
	Row: func(r policyRow) []string {
		p, state := r.Policy, "declared"
		if r.Deleted {
			state = "deleted"
		} else if !r.Declared {
			state = "not declared"
		}
		return []string{
			r.Group, state, storecli.Millis(p.MinTTLMS), storecli.Millis(p.MaxTTLMS), storecli.Millis(p.BackoffMS),
			storecli.Dash(strings.Join(p.Members, ",")), storecli.YesNo(*p.Fenced), storecli.YesNo(p.MayBeVacant), strconv.FormatUint(r.Version, 10),
		}
	},
	Name: func(r policyRow) string { return r.Group },
}

func printPolicy(r *storecli.Run, group string, a store.Attributes) error {
	p := operator.ParsePolicy(a)
	return policyTable.One(r.Out, policyRow{Group: group, Declared: p.Declared, Deleted: p.Deleted, Version: a.Version, Policy: p.Wire()})
}

func newPolicy(env cli.Env) *cobra.Command {
	cmd := cli.Parent("policy", "Show or change the policy of a group, or delete the group.", newPolicyShow(env), newPolicySet(env), newPolicyDelete(env))
	cmd.Example = `  tenure policy set billing --members=node-1,node-2`
	return cmd
}

func newPolicyShow(env cli.Env) *cobra.Command {
	return storecli.New(env, storecli.Spec{
		Use:     "show GROUP",
		Short:   "Show the policy of a group.",
		Example: `  tenure policy show billing -o yaml`,
		Args:    storecli.Groups(cobra.ExactArgs(1)),
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			call, cancel := context.WithTimeout(ctx, r.Call)
			defer cancel()
			a, err := r.Attributes(call, operator.Group(args[0]))
			if err != nil {
				return err
			}
			if a.Version == 0 {
				r.Say("group %q has no policy: these are the defaults", args[0])
			}
			return printPolicy(r, args[0], a)
		},
	})
}

func newPolicySet(env cli.Env) *cobra.Command {
	var minTTL, maxTTL, backoff time.Duration
	var members []string
	var fenced, vacant, yes bool
	var from uint64
	cmd := storecli.New(env, storecli.Spec{
		Use:   "set GROUP",
		Short: "Declare a group, or change its policy.",
		Long: `Declare a group, or change its policy. A flag that is not given leaves its part as it is;
a duration of 0 or an empty list removes the rule. The policy applies to terms that begin
later, through the service and with ` + "`tenure exec`" + `.

The command asks before it sets members that include no living candidate: then nobody
can lead. --may-be-vacant is for groups that are led now and then, such as those of
scheduled jobs: ` + "`tenure doctor`" + `, metrics and alerts do not report them while nobody leads.`,
		Example: `  tenure policy set billing --members=node-1,node-2 --min-ttl=4s --max-ttl=30s`,
		Args:    storecli.Groups(cobra.ExactArgs(1)),
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			if r.Cmd.Flags().Changed("members") {
				if err := confirmMembers(ctx, r, args[0], members, yes); err != nil {
					return err
				}
			}
			limits := r.Caps()
			a, err := r.Change(ctx, operator.Group(args[0]), from, func(values map[string]string) error {
				g := operator.ParsePolicy(store.Attributes{Values: values}).Wire()
				for flag, set := range map[string]func(){
					"min-ttl": func() { g.MinTTLMS = minTTL.Milliseconds() },
					"max-ttl": func() { g.MaxTTLMS = maxTTL.Milliseconds() },
					"backoff": func() { g.BackoffMS = backoff.Milliseconds() },
					"members": func() { g.Members = members },
					"fenced":  func() { g.Fenced = &fenced },

					"may-be-vacant": func() { g.MayBeVacant = vacant },
				} {
					if r.Cmd.Flags().Changed(flag) {
						set()
					}
				}
				if err := g.Check(limits, limits.MaxTTL); err != nil {
					return cli.Exit(cli.ExitUsage, err)
				}
				next := g.Values(values)
				clear(values)
				maps.Copy(values, next)
				return nil
			})
			var changed *operator.VersionError
			if errors.As(err, &changed) {
				return cli.Exit(cli.ExitFenced, err)
			}
			if err != nil {
				return err
			}
			return printPolicy(r, args[0], a)
		},
	})
	f := cmd.Flags()
	f.DurationVar(&minTTL, "min-ttl", 0, "shortest allowed TTL")
	f.DurationVar(&maxTTL, "max-ttl", 0, "longest allowed TTL")
	f.DurationVar(&backoff, "backoff", 0, "how long a refused candidate is told to wait")
	f.StringSliceVar(&members, "members", nil, "nodes that may lead (default: every node)")
	f.BoolVar(&fenced, "fenced", true, "whether the resources of the group check the token")
	f.BoolVar(&vacant, "may-be-vacant", false, "do not report the group while nobody leads it, such as between the runs of a scheduled job")
	f.BoolVar(&yes, "yes", false, "do not ask for confirmation")
	f.Uint64Var(&from, "from-version", 0, "only change the policy if it has this version (default: any)")
	return cmd
}

func newPolicyDelete(env cli.Env) *cobra.Command {
	var yes bool
	cmd := storecli.New(env, storecli.Spec{
		Use:   "delete GROUP",
		Short: "Delete a group that is no longer used.",
		Long: `Delete a group that is no longer used: nobody can lead it until ` + "`tenure policy set`" + `
declares it again, and lists, metrics and alerts do not show it. Its tokens are kept, so
that none is granted twice.

Exit code 3: the group has a leader.`,
		Example: `  tenure policy delete billing`,
		Args:    storecli.Groups(cobra.ExactArgs(1)),
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			v, err := r.ReadGroup(ctx, args[0])
			if err != nil {
				return err
			}
			if v.State == tenure.Led {
				return cli.Exit(cli.ExitNo, fmt.Errorf("%s; ask it to give up first with `tenure step-down %s`", whoLeads(v), v.Group))
			}
			if err := r.Confirm(yes, "nobody can lead group %q until it is declared again", args[0]); err != nil {
				return err
			}
			a, err := r.Change(ctx, operator.Group(args[0]), 0, func(values map[string]string) error {
				clear(values)
				maps.Copy(values, operator.Deleted())
				return nil
			})
			if err != nil {
				return err
			}
			return printPolicy(r, args[0], a)
		},
	})
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}

// confirmMembers asks if no living candidate of the group is among its new members.
func confirmMembers(ctx context.Context, r *storecli.Run, group string, members []string, yes bool) error {
	if len(members) == 0 {
		return nil
	}
	var candidates []string
	for l, err := range r.Candidates(ctx, store.Scope{group}) {
		if err != nil {
			return err
		}
		if slices.Contains(members, l.Candidate.ID) {
			return nil
		}
		if !slices.Contains(candidates, l.Candidate.ID) {
			candidates = append(candidates, l.Candidate.ID)
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	return r.Confirm(yes, "none of the %d candidates of group %q is a member (%s): after the current term nobody can lead until a member campaigns", len(candidates), group, strings.Join(candidates[:min(3, len(candidates))], ", "))
}
