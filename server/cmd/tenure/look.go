package main

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
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/server/service"
)

// leaderRow is who leads a group. The names are those of the service's answers.
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

func rowOf(v lease.View) leaderRow {
	r := leaderRow{Group: v.Group, State: tenure.Vacant.String(), Term: v.Token}
	if v.State != tenure.Led {
		return r
	}
	r.State, r.NodeID, r.Address, r.Metadata = tenure.Led.String(), v.Candidate.ID, v.Candidate.Address, v.Candidate.Metadata
	if n := len(v.Terms); n > 0 {
		r.SinceMS = v.Terms[n-1].Begin.UnixMilli()
	}
	return r
}

func since(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return age(time.UnixMilli(ms))
}

func stateColour(state string) cli.Colour {
	if state == tenure.Led.String() {
		return cli.Green
	}
	return cli.Yellow
}

func leaderSheet() cli.Sheet[leaderRow] {
	return cli.Sheet[leaderRow]{
		Columns: []cli.Column[leaderRow]{
			{Head: "GROUP", Cell: func(r leaderRow) string { return r.Group }},
			{Head: "STATE", Cell: func(r leaderRow) string { return r.State }, Paint: func(r leaderRow) cli.Colour { return stateColour(r.State) }},
			{Head: "LEADER", Cell: func(r leaderRow) string { return dash(r.NodeID) }},
			{Head: "TERM", Cell: func(r leaderRow) string { return r.Term.String() }},
			{Head: "SINCE", Cell: func(r leaderRow) string { return since(r.SinceMS) }},
			{Head: "ADDRESS", Cell: func(r leaderRow) string { return dash(r.Address) }},
		},
		Name: func(r leaderRow) string { return r.NodeID },
	}
}

func newLeader(env func(string) (string, bool)) *cobra.Command {
	d := &desk{}
	return d.verb(&cobra.Command{
		Use:   "leader GROUP...",
		Short: "Who leads a group, linearizably",
		Long: `Say who leads a group now, linearizably. It is an answer, not a permission: by the time
it is read another may lead. With -o name it is the node alone. Exit code 3: nobody leads.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := groupsValid(args...); err != nil {
				return err
			}
			return d.with(cmd, func(ctx context.Context, s operator.Store) error {
				var rows []leaderRow
				var none error
				for _, g := range args {
					v, err := read(ctx, s, g)
					if err != nil {
						return err
					}
					r := rowOf(v)
					if v.State != tenure.Led {
						none = errors.Join(none, noLeader(v))
						if d.out.Format == cli.Name {
							continue
						}
					}
					rows = append(rows, r)
				}
				if err := d.print(cmd, rows, len(args) == 1); err != nil {
					return err
				}
				if none != nil {
					return cli.Exit(exitNo, none)
				}
				return nil
			})
		},
	}, env, aGroup)
}

func (d *desk) print(cmd *cobra.Command, rows []leaderRow, one bool) error {
	if one && len(rows) == 1 {
		return leaderSheet().One(cmd.OutOrStdout(), &d.out, rows[0])
	}
	return leaderSheet().Print(cmd.OutOrStdout(), &d.out, rows)
}

func read(ctx context.Context, s operator.Store, group string) (lease.View, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Call)
	defer cancel()
	return s.Read(ctx, group)
}

func noLeader(v lease.View) error {
	if v.Token == 0 {
		return fmt.Errorf("group %q has no leader, and never had one: see `tenure candidates %s`", v.Group, v.Group)
	}
	return fmt.Errorf("group %q has no leader (newest token %d): see `tenure candidates %s` and `tenure history %s`", v.Group, v.Token, v.Group, v.Group)
}

// scopeOf are patterns given as arguments; none is every group.
func scopeOf(args []string) (lease.Scope, error) {
	if len(args) == 0 {
		args = []string{"*"}
	}
	scope := lease.Scope(args)
	if err := scope.Validate(); err != nil {
		return nil, cli.Exit(exitUsage, err)
	}
	return scope, nil
}

func newGroups(env func(string) (string, bool)) *cobra.Command {
	d := &desk{}
	return d.verb(&cobra.Command{
		Use:   "groups [GROUP|BEGINNING*]...",
		Short: "Groups that were ever led or declared",
		Long: `List groups that were ever led, or declared with ` + "`tenure policy set`" + `, and who leads them.
A pattern is a name, or a beginning and *, in quotes: a shell knows it too.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, err := scopeOf(args)
			if err != nil {
				return err
			}
			return d.with(cmd, func(ctx context.Context, s operator.Store) error {
				var rows []leaderRow
				led := make(map[string]bool)
				for v, err := range s.Views(ctx, scope, "") {
					if err != nil {
						return err
					}
					led[v.Group] = true
					rows = append(rows, rowOf(v))
				}
				for g, err := range s.Declared(ctx, "", "") {
					if denied(err) {
						cli.Say(cmd, "groups that were declared and never led are not shown: that needs the right to observe all groups")
						break
					}
					if err != nil {
						return err
					}
					if !led[g] && scope.Covers(g) {
						rows = append(rows, leaderRow{Group: g, State: tenure.Vacant.String(), Declared: true})
					}
				}
				slices.SortFunc(rows, func(a, b leaderRow) int { return strings.Compare(a.Group, b.Group) })
				if len(rows) == 0 && d.out.People() {
					cli.Say(cmd, "no such group was ever led or declared here")
				}
				sheet := leaderSheet()
				sheet.Name = func(r leaderRow) string { return r.Group }
				return sheet.Print(cmd.OutOrStdout(), &d.out, rows)
			})
		},
	}, env, aGroup)
}

func newHistory(env func(string) (string, bool)) *cobra.Command {
	d := &desk{}
	var limit int
	cmd := d.verb(&cobra.Command{
		Use:   "history GROUP",
		Short: "Who led a group, how long, and why each term ended",
		Long: `List the terms of a group, newest first: who led, how long, and why it ended. Times are
the engine's wall clock: for people, never for decisions.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := groupsValid(args...); err != nil {
				return err
			}
			if limit < 1 {
				return cli.Exit(exitUsage, errors.New("limit: at least 1"))
			}
			return d.with(cmd, func(ctx context.Context, s operator.Store) error {
				var rows []service.Term
				now := time.Now()
				for t, err := range s.Terms(ctx, args[0]) {
					if err != nil {
						return err
					}
					if rows = append(rows, termRow(t, now)); len(rows) == limit {
						break
					}
				}
				if len(rows) == 0 && d.out.People() {
					cli.Say(cmd, "group %q was never led", args[0])
				}
				return termSheet().Print(cmd.OutOrStdout(), &d.out, rows)
			})
		},
	}, env, aGroup)
	cmd.Flags().IntVar(&limit, "limit", 20, "how many terms at most")
	return cmd
}

func termRow(t lease.Term, now time.Time) service.Term {
	out := service.Term{Term: t.Token, NodeID: t.Candidate, BeginMS: t.Begin.UnixMilli(), Reason: string(t.Reason)}
	if !t.End.IsZero() {
		now = t.End
		out.EndMS = t.End.UnixMilli()
	}
	out.DurationMS = max(0, now.Sub(t.Begin).Milliseconds())
	return out
}

func stamp(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05Z")
}

func termSheet() cli.Sheet[service.Term] {
	return cli.Sheet[service.Term]{
		Columns: []cli.Column[service.Term]{
			{Head: "TERM", Cell: func(t service.Term) string { return t.Term.String() }},
			{Head: "NODE", Cell: func(t service.Term) string { return t.NodeID }},
			{Head: "BEGIN", Cell: func(t service.Term) string { return stamp(t.BeginMS) }},
			{Head: "END", Cell: func(t service.Term) string { return stamp(t.EndMS) }},
			{Head: "LASTED", Cell: func(t service.Term) string { return short(time.Duration(t.DurationMS) * time.Millisecond) }},
			{Head: "ENDED BY", Cell: func(t service.Term) string { return dash(t.Reason) }},
		},
		Name: func(t service.Term) string { return t.Term.String() },
	}
}

func newCandidates(env func(string) (string, bool)) *cobra.Command {
	d := &desk{}
	return d.verb(&cobra.Command{
		Use:   "candidates GROUP",
		Short: "Who stands in line for a group, in order",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := groupsValid(args...); err != nil {
				return err
			}
			return d.with(cmd, func(ctx context.Context, s operator.Store) error {
				v, err := read(ctx, s, args[0])
				if err != nil {
					return err
				}
				var rows []service.Candidate
				for l, err := range s.Candidates(ctx, lease.Scope{args[0]}) {
					if err != nil {
						return err
					}
					c := l.Candidate
					rows = append(rows, service.Candidate{
						NodeID: c.ID, Address: c.Address, Priority: c.Priority, Metadata: c.Metadata, TTLMS: l.TTL.Milliseconds(),
						Leads: v.State == tenure.Led && v.Holder == l.ID,
					})
				}
				if len(rows) == 0 && d.out.People() {
					cli.Say(cmd, "nobody stands for group %q", args[0])
				}
				return candidateSheet().Print(cmd.OutOrStdout(), &d.out, rows)
			})
		},
	}, env, aGroup)
}

func candidateSheet() cli.Sheet[service.Candidate] {
	return cli.Sheet[service.Candidate]{
		Columns: []cli.Column[service.Candidate]{
			{Head: "NODE", Cell: func(c service.Candidate) string { return c.NodeID }},
			{Head: "LEADS", Cell: func(c service.Candidate) string { return yesNo(c.Leads) }},
			{Head: "PRIORITY", Cell: func(c service.Candidate) string { return strconv.Itoa(c.Priority) }},
			{Head: "TTL", Cell: func(c service.Candidate) string { return short(time.Duration(c.TTLMS) * time.Millisecond) }},
			{Head: "ADDRESS", Cell: func(c service.Candidate) string { return dash(c.Address) }},
		},
		Name: func(c service.Candidate) string { return c.NodeID },
	}
}

func yesNo(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}
