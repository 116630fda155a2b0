package main

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
)

// completion finds what an argument may be, given those before it and how it begins.
type completion func(ctx context.Context, s operator.Store, before []string, begin string) ([]string, error)

const (
	// completionWait is how long a person waits after the tab key.
	completionWait = 2 * time.Second
	// completions are shown at most.
	maxCompletions = 200
)

// complete asks the store for the argument at the cursor. What it cannot find out it does
// not say: an error in the middle of a command line helps nobody.
func (d *desk) complete(arguments []completion) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		const only = cobra.ShellCompDirectiveNoFileComp
		if len(arguments) == 0 {
			return nil, only
		}
		at := min(len(args), len(arguments)-1)
		if len(args) > at && cmd.Args != nil && cmd.Args(cmd, append(slices.Clone(args), "x")) != nil {
			return nil, only // there is no such argument
		}
		if cli.Set(cmd, d.env) != nil {
			return nil, only
		}
		d.conn.timeout = completionWait
		ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
		defer cancel()
		o, err := d.conn.open(ctx, slog.New(slog.NewTextHandler(io.Discard, nil)))
		if err != nil {
			return nil, only
		}
		defer o.Close()
		names, err := arguments[at](ctx, operator.Store{Store: o.Store, Call: completionWait}, args, begin)
		if err != nil {
			return nil, only
		}
		return names, only
	}
}

// aGroup completes groups that are not named yet.
func aGroup(ctx context.Context, s operator.Store, before []string, begin string) ([]string, error) {
	var out []string
	led := make(map[string]bool)
	scope := lease.Scope{begin + "*"}
	for v, err := range s.Views(ctx, scope, "") {
		if err != nil || len(out) == maxCompletions {
			return out, err
		}
		if led[v.Group] = true; !slices.Contains(before, v.Group) {
			out = append(out, v.Group)
		}
	}
	for g, err := range s.Declared(ctx, begin, "") {
		if err != nil || len(out) == maxCompletions {
			break
		}
		if !led[g] && !slices.Contains(before, g) {
			out = append(out, g)
		}
	}
	slices.Sort(out)
	return out, nil
}

// aNode completes nodes that live.
func aNode(ctx context.Context, s operator.Store, _ []string, begin string) ([]string, error) {
	return nodes(ctx, s, lease.Scope{"*"}, begin)
}

// aCandidate completes those in line for the group before it.
func aCandidate(ctx context.Context, s operator.Store, before []string, begin string) ([]string, error) {
	return nodes(ctx, s, lease.Scope{before[0]}, begin)
}

func nodes(ctx context.Context, s operator.Store, scope lease.Scope, begin string) ([]string, error) {
	var out []string
	for l, err := range s.Candidates(ctx, scope) {
		if err != nil || len(out) == maxCompletions {
			return out, err
		}
		if strings.HasPrefix(l.Candidate.ID, begin) && !slices.Contains(out, l.Candidate.ID) {
			out = append(out, l.Candidate.ID)
		}
	}
	slices.Sort(out)
	return out, nil
}
