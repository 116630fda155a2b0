package operate

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
	Columns: []string{"GROUP", "DECLARED", "MIN TTL", "MAX TTL", "BACKOFF", "MEMBERS", "FENCED", "VERSION"},
	Row: func(r policyRow) []string {
		p := r.Policy
		return []string{
			r.Group, storecli.YesNo(r.Declared), storecli.Millis(p.MinTTLMS), storecli.Millis(p.MaxTTLMS), storecli.Millis(p.BackoffMS),
			storecli.Dash(strings.Join(p.Members, ",")), storecli.YesNo(*p.Fenced), strconv.FormatUint(r.Version, 10),
		}
	},
	Name: func(r policyRow) string { return r.Group },
}

func printPolicy(r *storecli.Run, group string, a store.Attributes) error {
	p := operator.ParsePolicy(a)
	return policyTable.One(r.Out, policyRow{Group: group, Declared: p.Declared, Deleted: p.Deleted, Version: a.Version, Policy: p.Wire()})
}

func newPolicy(env cli.Env) *cobra.Command {
	cmd := cli.Parent("policy", "Show or change the policy of a group.", newPolicyGet(env), newPolicySet(env))
	cmd.Example = `  tenure policy set billing --members=node-1,node-2`
	return cmd
}

func newPolicyGet(env cli.Env) *cobra.Command {
	return storecli.New(env, storecli.Spec{
		Use:     "get GROUP",
		Short:   "Show the policy of a group.",
		Example: `  tenure policy get billing -o yaml`,
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
	var fenced bool
	var from uint64
	cmd := storecli.New(env, storecli.Spec{
		Use:   "set GROUP",
		Short: "Declare a group, or change its policy.",
		Long: `Declare a group, or change its policy. A flag that is not given leaves its part as it is;
a duration of 0 or an empty list removes the rule. The policy applies to terms that begin
later, through the service and with ` + "`tenure exec`" + `.`,
		Example: `  tenure policy set billing --members=node-1,node-2 --min-ttl=4s --max-ttl=30s`,
		Args:    storecli.Groups(cobra.ExactArgs(1)),
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			limits := r.Caps()
			a, err := r.Change(ctx, operator.Group(args[0]), from, func(values map[string]string) error {
				g := operator.ParsePolicy(store.Attributes{Values: values}).Wire()
				for flag, set := range map[string]func(){
					"min-ttl": func() { g.MinTTLMS = minTTL.Milliseconds() },
					"max-ttl": func() { g.MaxTTLMS = maxTTL.Milliseconds() },
					"backoff": func() { g.BackoffMS = backoff.Milliseconds() },
					"members": func() { g.Members = members },
					"fenced":  func() { g.Fenced = &fenced },
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
	f.Uint64Var(&from, "from-version", 0, "only change the policy if it has this version (default: any)")
	return cmd
}
