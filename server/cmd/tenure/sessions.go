package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
)

// sessionRow is a living session.
type sessionRow struct {
	Session string   `json:"session"`
	NodeID  string   `json:"node_id"`
	Address string   `json:"address,omitempty"`
	TTLMS   int64    `json:"ttl_ms"`
	Scope   []string `json:"scope"`
	Leads   []string `json:"leads"`
}

func newSessions(env func(string) (string, bool)) *cobra.Command {
	d := &desk{}
	return d.verb(&cobra.Command{
		Use:   "sessions [GROUP|BEGINNING*]...",
		Short: "Living sessions: who is alive, for which groups, and what they lead",
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, err := scopeOf(args)
			if err != nil {
				return err
			}
			return d.with(cmd, func(ctx context.Context, s operator.Store) error {
				leads := map[lease.SessionID][]string{}
				for v, err := range s.Views(ctx, scope, "") {
					if err != nil {
						return err
					}
					if v.State == tenure.Led {
						leads[v.Holder] = append(leads[v.Holder], v.Group)
					}
				}
				var rows []sessionRow
				for l, err := range s.Candidates(ctx, scope) {
					if err != nil {
						return err
					}
					rows = append(rows, sessionRow{
						Session: string(l.ID), NodeID: l.Candidate.ID, Address: l.Candidate.Address, TTLMS: l.TTL.Milliseconds(),
						Scope: l.Scope, Leads: append([]string{}, leads[l.ID]...),
					})
				}
				if len(rows) == 0 && d.out.People() {
					cli.Say(cmd, "there is no living session")
				}
				return sessionSheet().Print(cmd.OutOrStdout(), &d.out, rows)
			})
		},
	}, env, aGroup)
}

func sessionSheet() cli.Sheet[sessionRow] {
	few := func(names []string) string {
		const most = 3
		if len(names) > most {
			return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ","), len(names)-most)
		}
		return dash(strings.Join(names, ","))
	}
	return cli.Sheet[sessionRow]{
		Columns: []cli.Column[sessionRow]{
			{Head: "SESSION", Cell: func(r sessionRow) string { return r.Session }},
			{Head: "NODE", Cell: func(r sessionRow) string { return r.NodeID }},
			{Head: "TTL", Cell: func(r sessionRow) string { return short(time.Duration(r.TTLMS) * time.Millisecond) }},
			{Head: "STANDS FOR", Cell: func(r sessionRow) string { return few(r.Scope) }},
			{Head: "LEADS", Cell: func(r sessionRow) string { return few(r.Leads) }},
			{Head: "ADDRESS", Cell: func(r sessionRow) string { return dash(r.Address) }},
		},
		Name: func(r sessionRow) string { return r.Session },
	}
}
