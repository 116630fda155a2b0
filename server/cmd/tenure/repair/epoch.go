// Package repair has the commands for use after a restore: they raise the epoch of a
// deployment, and show and advance the marks of resources.
package repair

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/store"
)

// Commands returns the commands.
func Commands(env cli.Env) []*cobra.Command {
	epoch := cli.Parent("epoch", "Show or raise the epoch of a deployment, after a restore.", newEpochShow(env), newEpochRaise(env))
	epoch.Example = `  tenure epoch raise --seen=43`
	mark := cli.Parent("fence", "Show or advance the mark of a resource.", newFenceShow(), newFenceAdvance())
	mark.Example = `  tenure fence show orders --sink=postgres://10.0.0.5/shop`
	return []*cobra.Command{epoch, mark}
}

// epochRow is the epoch of a deployment.
type epochRow struct {
	Deployment string `json:"deployment"`
	Epoch      uint64 `json:"epoch"`
	Rewound    bool   `json:"rewound"`
	Why        string `json:"why,omitempty"`
	Index      uint64 `json:"index"`
}

func printEpoch(r *storecli.Run, m store.Meta) error {
	table := cli.Table[epochRow]{
		Columns: []string{"DEPLOYMENT", "EPOCH", "REWOUND"},
		Row: func(r epochRow) []string {
			return []string{r.Deployment, strconv.FormatUint(r.Epoch, 10), storecli.YesNo(r.Rewound)}
		},
		Name: func(r epochRow) string { return strconv.FormatUint(r.Epoch, 10) },
	}
	return table.One(r.Out, epochRow{Deployment: m.Deployment, Epoch: m.Epoch, Rewound: m.Rewound, Why: m.Why, Index: m.Index})
}

func newEpochShow(env cli.Env) *cobra.Command {
	return storecli.New(env, storecli.Spec{
		Use:     "show",
		Short:   "Show the epoch, and whether the engine is known to have lost data.",
		Example: `  tenure epoch show`,
		Run: func(ctx context.Context, r *storecli.Run, _ []string) error {
			m, err := meta(ctx, r)
			if err != nil {
				return err
			}
			return printEpoch(r, m)
		},
	})
}

func meta(ctx context.Context, r *storecli.Run) (store.Meta, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Call)
	defer cancel()
	return r.Meta(ctx)
}

// raiser holds the flags of epoch raise.
type raiser struct {
	to   uint64
	seen string
	wait time.Duration
	yes  bool
}

// unknownTTL is how long to wait for leaders whose TTL is not known: the default TTL.
const unknownTTL = 8 * time.Second

func newEpochRaise(env cli.Env) *cobra.Command {
	q := &raiser{}
	cmd := storecli.New(env, storecli.Spec{
		Use:   "raise",
		Short: "Raise the epoch after a restore, so that new tokens are above all old ones.",
		Long: `Raise the epoch of a deployment. An engine that was restored from a backup has lost grants
and would grant their tokens again. In the new epoch every token is above all older ones,
so sinks refuse the leaders from before the restore. This cannot be undone.

Raise the epoch after every restore, even if the engine did not detect it. The command
first waits for one TTL (--wait), so that earlier leaders have stopped. The new epoch must
be above the epoch of every token that any sink has seen: give the highest token with
--seen (` + "`tenure fence show`" + ` shows it), or the epoch with --to. Sinks accept one epoch more
than they know; if it rises by more, ` + "`tenure fence advance`" + ` moves their marks.`,
		Example: `  tenure epoch raise --seen=43                   # the highest token that any sink has seen`,
		Run:     q.raise,
	})
	f := cmd.Flags()
	f.Uint64Var(&q.to, "to", 0, "new epoch (default: one above the current one and that of --seen)")
	f.StringVar(&q.seen, "seen", "", "highest token that any sink has seen")
	f.DurationVar(&q.wait, "wait", -1, "how long to wait first (default: 0, or after lost data the longest TTL of a live session, at least 8s)")
	f.BoolVar(&q.yes, "yes", false, "do not ask for confirmation")
	return cmd
}

func (q *raiser) raise(ctx context.Context, r *storecli.Run, _ []string) error {
	m, err := meta(ctx, r)
	if err != nil {
		return err
	}
	above := m.Epoch
	if q.seen != "" {
		token, err := fence.ParseToken(q.seen)
		if err != nil {
			return cli.Usage("seen: %w", err)
		}
		above = max(above, token.Epoch())
	}
	to := cmp.Or(q.to, above+1)
	if err := store.CheckEpoch(to, above); err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	sessions, longest := 0, unknownTTL
	for s, err := range r.Candidates(ctx, store.Scope{"*"}) {
		if err != nil {
			return err
		}
		sessions++
		longest = max(longest, s.TTL)
	}
	wait := q.wait
	if wait < 0 {
		if wait = 0; m.Rewound {
			wait = longest
		}
	}
	announce(r, m, to, sessions, wait)
	if err := cli.Confirm(r.Cmd, q.yes); err != nil {
		return err
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return cli.Exit(cli.ExitFailure, errors.New("nothing was changed: interrupted while waiting"))
	}
	call, cancel := context.WithTimeout(ctx, r.Call)
	defer cancel()
	if m, err = r.RaiseEpoch(call, to); err != nil {
		return err
	}
	return printEpoch(r, m)
}

func announce(r *storecli.Run, m store.Meta, to uint64, sessions int, wait time.Duration) {
	r.Say("deployment %s is at epoch %d", m.Deployment, m.Epoch)
	if m.Rewound {
		r.Say("the store lost data (%s): it grants nothing and keeps no session alive until the epoch is raised", cmp.Or(m.Why, "the engine is behind what it had acknowledged"))
	} else {
		r.Say("no loss of data was detected; if the engine was restored anyway, stop the processes that led before (live sessions: %d)", sessions)
	}
	r.Say("epoch %d: every new token is at least %d; a sink that has seen one refuses all older tokens from then on", to, fence.NewToken(to, 1))
	if to > m.Epoch+1 {
		r.Say("this is more than one epoch above the current one: sinks that have seen no token in between refuse new tokens until `tenure fence advance`")
	}
	if wait > 0 {
		r.Say("waiting %v first, so that leaders from before the restore have stopped", wait)
	}
}
