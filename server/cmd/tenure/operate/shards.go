package operate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/shard"
	"github.com/tenurehq/tenure/store"
)

func newPin(env cli.Env) *cobra.Command {
	index := 0
	return storecli.New(env, storecli.Spec{
		Use:   "pin SET SHARD [NODE]",
		Short: "Say which node should own a shard, or, without NODE, that any may.",
		Long: `Say which node should own a shard of a set while it lives. The owner hands the shard over
within seconds. If the node does not live, the shard is owned as without the pin.
Without NODE the pin is removed.`,
		Example: `  tenure pin orders 17 node-3
  tenure pin orders 17`,
		Args: cobra.RangeArgs(2, 3),
		Check: func(args []string) (err error) {
			if index, err = strconv.Atoi(args[1]); err != nil {
				return fmt.Errorf("%.20q is not the number of a shard", args[1])
			}
			if len(args) == 3 {
				err = storecli.CheckNode(args[2])
			}
			return errors.Join(store.CheckGroup(args[0]), err)
		},
		Complete: []storecli.Completion{},
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			node := ""
			if len(args) == 3 {
				node = args[2]
			}
			call, cancel := context.WithTimeout(ctx, r.Call)
			defer cancel()
			return shard.Pin(call, r.Store.Store, args[0], index, node)
		},
	})
}

func newWeigh(env cli.Env) *cobra.Command {
	weight := 0
	return storecli.New(env, storecli.Spec{
		Use:   "weigh SET NODE WEIGHT",
		Short: "Set a node's share of the shards of a set.",
		Long: `Set a node's share of the shards of a set: a node of weight 2 owns twice as many as one of
weight 1, which is the default. A node that starts with a weight of its own sets it again.`,
		Example: `  tenure weigh orders node-3 2`,
		Args:    cobra.ExactArgs(3),
		Check: func(args []string) (err error) {
			if weight, err = strconv.Atoi(args[2]); err != nil || weight < 1 || weight > shard.MaxWeight {
				return fmt.Errorf("%.20q is not a weight: use 1 to %d", args[2], shard.MaxWeight)
			}
			return errors.Join(store.CheckGroup(args[0]), storecli.CheckNode(args[1]))
		},
		Complete: []storecli.Completion{},
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			call, cancel := context.WithTimeout(ctx, r.Call)
			defer cancel()
			return shard.Weigh(call, r.Store.Store, args[0], args[1], weight)
		},
	})
}

func newDrain(env cli.Env) *cobra.Command {
	var reason string
	var wait time.Duration
	var yes bool
	cmd := storecli.New(env, storecli.Spec{
		Use:   "drain NODE",
		Short: "Cordon a node, and wait until it leads nothing: before a restart.",
		Long: `Cordon a node, ask it to give up each group that it leads, and wait until it leads nothing.
Shards are handed over by their owner, a few at a time. Then the node can be restarted;
` + "`tenure uncordon`" + ` lets it lead again.

Exit code 6: it still leads groups when --wait is over. The cordon stays.`,
		Example:  `  tenure drain node-1 --yes --wait=2m`,
		Args:     cobra.ExactArgs(1),
		Complete: []storecli.Completion{storecli.CompleteNode},
		Check: func(args []string) error {
			switch {
			case reason == "" || len(reason) > operator.MaxReason:
				return fmt.Errorf("reason: must be 1 to %d bytes", operator.MaxReason)
			case wait <= 0 || wait > maxWait:
				return fmt.Errorf("wait: must be positive, and at most %v", maxWait)
			}
			return storecli.CheckNode(args[0])
		},
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			if err := r.Confirm(yes, "node %q will give up all groups, and lead nothing until it is uncordoned", args[0]); err != nil {
				return err
			}
			if _, err := r.Cordon(ctx, args[0], reason); err != nil {
				return err
			}
			return drain(ctx, r, args[0], reason, wait)
		},
	})
	cmd.Flags().StringVar(&reason, "reason", "drained by an operator", "reason that the node and its users are told")
	cmd.Flags().DurationVar(&wait, "wait", time.Minute, "how long to wait until the node leads nothing")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}

// drain asks a cordoned node for its groups until it has none. It says how many are left, when that
// has changed.
func drain(ctx context.Context, r *storecli.Run, node, reason string, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	sets := map[string]bool{}
	for a, err := range r.AllAttributes(ctx, "shard/") {
		if err != nil {
			break // every group is asked for, which is right too
		}
		sets[shard.SetOf(a.Name)] = true
	}
	asked := map[string]bool{}
	left := -1
	for {
		groups := leads(ctx, r, node)
		switch {
		case ctx.Err() != nil:
			return cli.Exit(cli.ExitUnavailable, fmt.Errorf("node %q still leads %d groups after %v", node, max(left, 0), wait))
		case len(groups) != left:
			left = len(groups)
			r.Say("node %q leads %d groups", node, left)
		}
		if left == 0 {
			return nil
		}
		for _, g := range groups {
			set, _ := shard.Parse(g)
			if asked[g] || sets[set] {
				continue // its owner hands it over by itself
			}
			v, err := r.ReadGroup(ctx, g)
			if err != nil || v.Candidate.ID != node {
				continue
			}
			if _, err := r.Ask(ctx, v, operator.Order{Verb: store.StepDown, Reason: reason}); err == nil {
				asked[g] = true
			}
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
