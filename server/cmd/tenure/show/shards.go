package show

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/shard"
	"github.com/tenurehq/tenure/store"
)

// ownerRow is what one process owns of a set.
type ownerRow struct {
	NodeID string  `json:"node_id"` // "": nobody owns these
	Shards int     `json:"shards"`
	Share  float64 `json:"share"` // beside the mean of the owners
	Weight float64 `json:"weight"`
	Pinned int     `json:"pinned"`
	Moving int     `json:"moving"` // should be owned by another node
	Of     []int   `json:"of"`
}

func newShards(env cli.Env) *cobra.Command {
	var all bool
	cmd := storecli.New(env, storecli.Spec{
		Use:   "shards SET",
		Short: "Show who owns the shards of a set.",
		Long: `Show how many shards of a set each node owns, and how that compares with the mean: a node
of weight 1 that owns exactly its part has a share of 1.00. MOVING counts shards that another node
should own: they move soon. With --all, list each shard.
Shards are described in the Go package shard.`,
		Example: `  tenure shards orders
  tenure shards orders --all`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.ExactArgs(1)(cmd, args); err != nil {
				return err
			}
			return store.CheckGroup(args[0])
		},
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			set := args[0]
			call, cancel := context.WithTimeout(ctx, r.Call)
			look, err := shard.Look(call, r.Store.Store, set)
			cancel()
			switch {
			case err != nil:
				return err
			case look.Count == 0:
				return cli.Exit(cli.ExitNo, fmt.Errorf("no process has run the set %q", set))
			}
			if !all {
				r.Say("%d shards, %d without an owner, %d that should move; imbalance %.2f", look.Count, len(look.Vacant), look.Moving, look.Imbalance)
				return ownerTable.List(r.Out, ownersOf(look))
			}
			leaders := map[string]leaderRow{}
			for v, err := range r.Views(ctx, store.Scope{set + "-*"}, "") {
				if err != nil {
					return err
				}
				leaders[v.Group] = rowOf(v)
			}
			var rows []leaderRow
			for i := range look.Count {
				row, ok := leaders[shard.Group(set, i)]
				if !ok {
					row = leaderRow{Group: shard.Group(set, i), State: tenure.Vacant.String()}
				}
				rows = append(rows, row)
			}
			return leaderTable(func(r leaderRow) string { return r.Group }).List(r.Out, rows)
		},
		Complete: []storecli.Completion{},
	})
	cmd.Flags().BoolVar(&all, "all", false, "list each shard")
	return cmd
}

func ownersOf(look shard.Overview) []ownerRow {
	var rows []ownerRow
	if len(look.Vacant) > 0 {
		rows = append(rows, ownerRow{Shards: len(look.Vacant), Of: look.Vacant})
	}
	for _, o := range look.Owners {
		rows = append(rows, ownerRow{o.Candidate, len(o.Shards), o.Share, o.Weight, o.Pinned, o.Moving, o.Shards})
	}
	return rows
}

var ownerTable = cli.Table[ownerRow]{
	Columns: []string{"OWNER", "SHARDS", "SHARE", "WEIGHT", "PINNED", "MOVING"},
	Row: func(o ownerRow) []string {
		if o.NodeID == "" {
			return []string{"(nobody)", strconv.Itoa(o.Shards), cli.Empty, cli.Empty, cli.Empty, cli.Empty}
		}
		return []string{o.NodeID, strconv.Itoa(o.Shards), fmt.Sprintf("%.2f", o.Share), strconv.FormatFloat(o.Weight, 'f', -1, 64), strconv.Itoa(o.Pinned), strconv.Itoa(o.Moving)}
	},
	Name: func(o ownerRow) string { return o.NodeID },
}
