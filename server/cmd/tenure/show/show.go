// Package show has the commands that show leaders, groups, candidates and sessions. They
// change nothing.
package show

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/server/service"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/store"
)

// Commands returns the commands.
func Commands(env cli.Env) []*cobra.Command {
	return []*cobra.Command{newLeader(env), newWatch(env), newTop(env), newHistory(env), newGroups(env), newCandidates(env), newSessions(env), newShards(env)}
}

// leaderRow is the leader of a group. Its JSON names are those of the service.
type leaderRow struct {
	Group    string            `json:"group"`
	State    string            `json:"state"`
	NodeID   string            `json:"leader_node_id,omitempty"`
	Address  string            `json:"address,omitempty"`
	Term     fence.Token       `json:"term"`
	SinceMS  int64             `json:"since_ms,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Declared bool              `json:"declared,omitempty"` // and never led
}

func rowOf(v store.View) leaderRow {
	r := leaderRow{Group: v.Group, State: v.State.String(), Term: v.Token}
	if v.State != tenure.Led {
		r.State = tenure.Vacant.String()
		return r
	}
	r.NodeID, r.Address, r.Metadata = v.Candidate.ID, v.Candidate.Address, v.Candidate.Metadata
	if n := len(v.Terms); n > 0 {
		r.SinceMS = v.Terms[n-1].Begin.UnixMilli()
	}
	return r
}

func leaderTable(name func(leaderRow) string) cli.Table[leaderRow] {
	return cli.Table[leaderRow]{
		Columns: []string{"GROUP", "STATE", "LEADER", "TERM", "SINCE", "ADDRESS"},
		Row: func(r leaderRow) []string {
			since := cli.Empty
			if r.SinceMS != 0 {
				since = storecli.Age(time.UnixMilli(r.SinceMS))
			}
			return []string{r.Group, r.State, storecli.Dash(r.NodeID), r.Term.String(), since, storecli.Dash(r.Address)}
		},
		Name: name,
	}
}

func newLeader(env cli.Env) *cobra.Command {
	return storecli.New(env, storecli.Spec{
		Use:   "leader GROUP...",
		Short: "Show the current leader of a group.",
		Long: `Show the current leader of a group, from a linearizable read. Another node can lead by
the time you read the answer: do not use it to decide whether to act. -o name prints the
node id only. Exit code 3: the group has no leader.`,
		Example: `  tenure leader billing
  tenure leader billing -o name`,
		Args: storecli.Groups(cobra.MinimumNArgs(1)),
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			var rows []leaderRow
			var vacant error
			for _, g := range args {
				v, err := r.ReadGroup(ctx, g)
				if err != nil {
					return err
				}
				if v.State != tenure.Led {
					vacant = errors.Join(vacant, storecli.NoLeader(v))
					if r.Out.Format == cli.FormatName {
						continue
					}
				}
				rows = append(rows, rowOf(v))
			}
			table := leaderTable(func(r leaderRow) string { return r.NodeID })
			if len(args) == 1 && len(rows) == 1 {
				return errors.Join(table.One(r.Out, rows[0]), vacant)
			}
			return errors.Join(table.List(r.Out, rows), vacant)
		},
	})
}

func newGroups(env cli.Env) *cobra.Command {
	return storecli.New(env, storecli.Spec{
		Use:   "groups [GROUP|PREFIX*]...",
		Short: "List groups and their leaders.",
		Long: `List every group that was ever led, or declared with ` + "`tenure policy set`" + `, and its leader.
A group that was deleted (` + "`tenure policy delete`" + `) is not listed.
Put a pattern such as 'shard-*' in quotes, so that the shell does not expand it.`,
		Example: `  tenure groups 'shard-*'`,
		Args:    storecli.Scope,
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			scope := storecli.ScopeOf(args)
			policies := make(map[string]operator.Policy)
			for p, err := range r.Policies(ctx, "", "") {
				if storecli.Denied(err) {
					r.Say("groups that were declared and never led are not shown: that needs permission to observe all groups")
					break
				}
				if err != nil {
					return err
				}
				policies[p.Group()] = p
			}
			var rows []leaderRow
			for v, err := range r.Views(ctx, scope, "") {
				if err != nil {
					return err
				}
				if !policies[v.Group].Gone(v) {
					rows = append(rows, rowOf(v))
				}
				delete(policies, v.Group)
			}
			for g, p := range policies {
				if p.Exists() && scope.Covers(g) {
					rows = append(rows, leaderRow{Group: g, State: tenure.Vacant.String(), Declared: true})
				}
			}
			slices.SortFunc(rows, func(a, b leaderRow) int { return strings.Compare(a.Group, b.Group) })
			return list(r, leaderTable(func(r leaderRow) string { return r.Group }), rows, "no matching group was ever led or declared")
		},
	})
}

// list prints rows, and a note if a person asked and there are none.
func list[T any](r *storecli.Run, t cli.Table[T], rows []T, ifNone string, args ...any) error {
	if len(rows) == 0 && r.Out.Table() {
		r.Say(ifNone, args...)
	}
	return t.List(r.Out, rows)
}

func newHistory(env cli.Env) *cobra.Command {
	var limit int
	cmd := storecli.New(env, storecli.Spec{
		Use:   "history GROUP",
		Short: "List the terms of a group: leader, duration, reason for the end.",
		Long: `List the terms of a group, newest first: who led, for how long, and why the term ended.
Times come from the engine's wall clock. Do not use them for decisions.`,
		Example: `  tenure history billing --limit=5`,
		Args:    storecli.Groups(cobra.ExactArgs(1)),
		Check: func([]string) error {
			if limit < 1 {
				return fmt.Errorf("limit: %d must be at least 1", limit)
			}
			return nil
		},
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			var rows []service.Term
			now := time.Now()
			for t, err := range r.Terms(ctx, args[0]) {
				if err != nil {
					return err
				}
				if rows = append(rows, termRow(t, now)); len(rows) == limit {
					break
				}
			}
			return list(r, termTable(), rows, "group %q was never led", args[0])
		},
	})
	cmd.Flags().IntVar(&limit, "limit", 20, "maximum number of terms")
	return cmd
}

func termRow(t store.Term, now time.Time) service.Term {
	out := service.Term{Term: t.Token, NodeID: t.Candidate, BeginMS: t.Begin.UnixMilli(), Reason: string(t.Reason)}
	if !t.End.IsZero() {
		now = t.End
		out.EndMS = t.End.UnixMilli()
	}
	out.DurationMS = max(0, now.Sub(t.Begin).Milliseconds())
	return out
}

func termTable() cli.Table[service.Term] {
	stamp := func(ms int64) string {
		if ms == 0 {
			return cli.Empty
		}
		return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05Z")
	}
	return cli.Table[service.Term]{
		Columns: []string{"TERM", "NODE", "BEGIN", "END", "LASTED", "ENDED BY"},
		Row: func(t service.Term) []string {
			lasted := storecli.Short(time.Duration(t.DurationMS) * time.Millisecond)
			return []string{t.Term.String(), t.NodeID, stamp(t.BeginMS), stamp(t.EndMS), lasted, storecli.Dash(t.Reason)}
		},
		Name: func(t service.Term) string { return t.Term.String() },
	}
}

func newCandidates(env cli.Env) *cobra.Command {
	table := cli.Table[service.Candidate]{
		Columns: []string{"NODE", "LEADS", "BARRED", "PRIORITY", "TTL", "ADDRESS"},
		Row: func(c service.Candidate) []string {
			return []string{c.NodeID, storecli.YesNo(c.Leads), storecli.Dash(c.Barred), strconv.Itoa(c.Priority), storecli.Millis(c.TTLMS), storecli.Dash(c.Address)}
		},
		Name: func(c service.Candidate) string { return c.NodeID },
	}
	return storecli.New(env, storecli.Spec{
		Use:   "candidates GROUP",
		Short: "List the candidates of a group in the order in which they lead.",
		Long: `List the candidates of a group in the order in which they lead. BARRED says why a
candidate may not begin to lead: its node is cordoned, cooling_down after a step-down, or
not_a_member of the group's policy.`,
		Example: `  tenure candidates billing`,
		Args:    storecli.Groups(cobra.ExactArgs(1)),
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			v, err := r.ReadGroup(ctx, args[0])
			if err != nil {
				return err
			}
			var rows []service.Candidate
			for l, err := range r.Candidates(ctx, store.Scope{args[0]}) {
				if err != nil {
					return err
				}
				c := service.CandidateOf(l, v)
				var barred *store.BarError
				if err := r.Bar(ctx, args[0], c.NodeID); errors.As(err, &barred) {
					c.Barred = barred.Code
				} else if err != nil && !storecli.Denied(err) {
					return err
				}
				rows = append(rows, c)
			}
			return list(r, table, rows, "group %q has no candidates", args[0])
		},
	})
}

// sessionRow is a live session.
type sessionRow struct {
	Session string   `json:"session"`
	NodeID  string   `json:"node_id"`
	Address string   `json:"address,omitempty"`
	TTLMS   int64    `json:"ttl_ms"`
	Scope   []string `json:"scope"`
	Leads   []string `json:"leads"`
}

func sessionTable() cli.Table[sessionRow] {
	few := func(names []string) string {
		const most = 3
		if len(names) > most {
			return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ","), len(names)-most)
		}
		return storecli.Dash(strings.Join(names, ","))
	}
	return cli.Table[sessionRow]{
		Columns: []string{"SESSION", "NODE", "TTL", "CANDIDATE FOR", "LEADS", "ADDRESS"},
		Row: func(r sessionRow) []string {
			return []string{r.Session, r.NodeID, storecli.Millis(r.TTLMS), few(r.Scope), few(r.Leads), storecli.Dash(r.Address)}
		},
		Name: func(r sessionRow) string { return r.Session },
	}
}

func newSessions(env cli.Env) *cobra.Command {
	return storecli.New(env, storecli.Spec{
		Use:     "sessions [GROUP|PREFIX*]...",
		Short:   "List live sessions, with the groups that they are candidates for and lead.",
		Example: `  tenure sessions -o json`,
		Args:    storecli.Scope,
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			scope := storecli.ScopeOf(args)
			leads := map[store.SessionID][]string{}
			for v, err := range r.Views(ctx, scope, "") {
				if err != nil {
					return err
				}
				if v.State == tenure.Led {
					leads[v.Holder] = append(leads[v.Holder], v.Group)
				}
			}
			var rows []sessionRow
			for l, err := range r.Candidates(ctx, scope) {
				if err != nil {
					return err
				}
				rows = append(rows, sessionRow{
					Session: string(l.ID), NodeID: l.Candidate.ID, Address: l.Candidate.Address, TTLMS: l.TTL.Milliseconds(),
					Scope: l.Scope, Leads: append([]string{}, leads[l.ID]...),
				})
			}
			return list(r, sessionTable(), rows, "there are no live sessions")
		},
	})
}
