package storecli

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/store"
)

// Completion returns the values that an argument may have, given the arguments before it
// and its beginning.
type Completion func(ctx context.Context, s operator.Store, before []string, prefix string) ([]string, error)

const (
	completionTimeout = 2 * time.Second
	maxCompletions    = 200
)

// Complete asks the store for the argument at the cursor; the last entry of arguments also
// completes further ones. On an error it completes nothing: a message in the middle of a
// command line does not help.
func Complete(conn *Connection, env cli.Env, arguments ...Completion) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		const noFiles = cobra.ShellCompDirectiveNoFileComp
		at := min(len(args), len(arguments)-1)
		full := cmd.Args(cmd, args) == nil && cmd.Args(cmd, append(slices.Clone(args), "x")) != nil
		if full || cli.SetFlags(cmd, env) != nil {
			return nil, noFiles
		}
		conn.Timeout = completionTimeout
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		o, err := conn.Open(ctx, Logger(io.Discard, slog.LevelError))
		if err != nil {
			return nil, noFiles
		}
		defer o.Close()
		names, err := arguments[at](ctx, operator.Store{Store: o.Store, Call: completionTimeout}, args, prefix)
		if err != nil {
			return nil, noFiles
		}
		slices.Sort(names)
		return names, noFiles
	}
}

// CompleteGroup completes groups that are not among the arguments yet.
func CompleteGroup(ctx context.Context, s operator.Store, before []string, prefix string) ([]string, error) {
	policies := make(map[string]operator.Policy)
	for p, err := range s.Policies(ctx, prefix, "") {
		if err != nil || len(policies) == maxCompletions {
			break
		}
		policies[p.Group()] = p
	}
	var out []string
	for v, err := range s.Views(ctx, store.Scope{prefix + "*"}, "") {
		if err != nil || len(out) == maxCompletions {
			return out, err
		}
		if !policies[v.Group].Gone(v) {
			out = append(out, v.Group)
		}
		delete(policies, v.Group)
	}
	for g, p := range policies {
		if p.Exists() {
			out = append(out, g)
		}
	}
	return slices.DeleteFunc(out, func(g string) bool { return slices.Contains(before, g) }), nil
}

// CompleteNode completes live nodes.
func CompleteNode(ctx context.Context, s operator.Store, _ []string, prefix string) ([]string, error) {
	return nodes(ctx, s, store.Scope{"*"}, prefix)
}

// CompleteCandidate completes the candidates of the group in the first argument.
func CompleteCandidate(ctx context.Context, s operator.Store, before []string, prefix string) ([]string, error) {
	return nodes(ctx, s, store.Scope{before[0]}, prefix)
}

func nodes(ctx context.Context, s operator.Store, scope store.Scope, prefix string) ([]string, error) {
	var out []string
	for l, err := range s.Candidates(ctx, scope) {
		if err != nil || len(out) == maxCompletions {
			return out, err
		}
		if strings.HasPrefix(l.Candidate.ID, prefix) && !slices.Contains(out, l.Candidate.ID) {
			out = append(out, l.Candidate.ID)
		}
	}
	return out, nil
}
