package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
)

// epochRow is a deployment.
type epochRow struct {
	Deployment string `json:"deployment"`
	Epoch      uint64 `json:"epoch"`
	Rewound    bool   `json:"rewound"`
	Why        string `json:"why,omitempty"`
	Index      uint64 `json:"index"`
}

func epochSheet() cli.Sheet[epochRow] {
	return cli.Sheet[epochRow]{
		Columns: []cli.Column[epochRow]{
			{Head: "DEPLOYMENT", Cell: func(r epochRow) string { return r.Deployment }},
			{Head: "EPOCH", Cell: func(r epochRow) string { return strconv.FormatUint(r.Epoch, 10) }},
			{Head: "REWOUND", Cell: func(r epochRow) string { return yesNo(r.Rewound) }, Paint: func(r epochRow) cli.Colour {
				if r.Rewound {
					return cli.Red
				}
				return cli.Plain
			}},
		},
		Name: func(r epochRow) string { return strconv.FormatUint(r.Epoch, 10) },
	}
}

func epochOf(m lease.Meta) epochRow {
	return epochRow{Deployment: m.Deployment, Epoch: m.Epoch, Rewound: m.Rewound, Why: m.Why, Index: m.Index}
}

func newEpoch(env func(string) (string, bool)) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "epoch",
		Short: "See and raise the epoch of a deployment, after a restore",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return cli.Exit(exitUsage, errors.New("show or raise?"))
		},
	}
	cmd.AddCommand(newEpochShow(env), newEpochRaise(env))
	return cmd
}

func newEpochShow(env func(string) (string, bool)) *cobra.Command {
	d := &desk{}
	return d.verb(&cobra.Command{
		Use:   "show",
		Short: "Show the epoch, and whether the engine was seen to have gone back",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.with(cmd, func(ctx context.Context, s operator.Store) error {
				m, err := meta(ctx, s)
				if err != nil {
					return err
				}
				return epochSheet().One(cmd.OutOrStdout(), &d.out, epochOf(m))
			})
		},
	}, env)
}

func meta(ctx context.Context, s operator.Store) (lease.Meta, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Call)
	defer cancel()
	return s.Meta(ctx)
}

// raising is what the flags of epoch raise say.
type raising struct {
	desk
	to   uint64
	seen string
	wait time.Duration
	yes  bool
}

// unknownTTL is how long to wait for leaders of which nothing is known: the default TTL.
const unknownTTL = 8 * time.Second

func newEpochRaise(env func(string) (string, bool)) *cobra.Command {
	q := &raising{}
	cmd := q.verb(&cobra.Command{
		Use:   "raise",
		Short: "After a restore: lift every later token above all that were given before",
		Long: `Raise the epoch of a deployment. An engine that was restored from a backup has forgotten
grants, and would give their tokens again; from the new epoch on every token is above all
older ones, so that sinks refuse whoever led before the restore. It cannot be undone.

Do it after every restore, whether the engine noticed it or not. It waits for one TTL
first (--wait), so that whoever led before has stopped. The new epoch must be above that
of every token which any sink has seen: say the highest with --seen
(` + "`tenure fence mark`" + ` shows it), or name the epoch with --to. Sinks take one epoch more
than they know; if it rises by more, ` + "`tenure fence advance`" + ` lets them follow.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return q.with(cmd, func(ctx context.Context, s operator.Store) error { return q.raise(ctx, cmd, s) })
		},
	}, env)
	f := cmd.Flags()
	f.Uint64Var(&q.to, "to", 0, "the new epoch (default one above the present one and that of --seen)")
	f.StringVar(&q.seen, "seen", "", "the highest token that any sink has seen")
	f.DurationVar(&q.wait, "wait", -1, "how long to wait first (default, if it was rewound, the longest TTL of a living session, and at least 8s)")
	f.BoolVar(&q.yes, "yes", false, "do not ask")
	return cmd
}

func (q *raising) raise(ctx context.Context, cmd *cobra.Command, s operator.Store) error {
	m, err := meta(ctx, s)
	if err != nil {
		return err
	}
	above := m.Epoch
	if q.seen != "" {
		token, err := fence.ParseToken(q.seen)
		if err != nil {
			return cli.Exit(exitUsage, err)
		}
		above = max(above, token.Epoch())
	}
	to := q.to
	if to == 0 {
		to = above + 1
	}
	if err := lease.CheckEpoch(to, above); err != nil {
		return cli.Exit(exitUsage, err)
	}
	living, longest, err := sessionsOf(ctx, s)
	if err != nil {
		return err
	}
	wait := q.wait
	if wait < 0 {
		if wait = 0; m.Rewound {
			wait = max(longest, unknownTTL)
		}
	}
	q.announce(cmd, m, to, living, wait)
	if err := cli.Confirm(cmd, q.yes); err != nil {
		return err
	}
	if wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return cli.Exit(exitFailure, errors.New("nothing was changed: it was stopped while it waited"))
		}
	}
	call, cancel := context.WithTimeout(ctx, s.Call)
	defer cancel()
	raised, err := s.RaiseEpoch(call, to)
	if err != nil {
		return err
	}
	return epochSheet().One(cmd.OutOrStdout(), &q.out, epochOf(raised))
}

func (q *raising) announce(cmd *cobra.Command, m lease.Meta, to uint64, living int, wait time.Duration) {
	cli.Say(cmd, "deployment %s is at epoch %d", m.Deployment, m.Epoch)
	if m.Rewound {
		cli.Say(cmd, "the store lost data (%s): it grants nothing and keeps no session alive until the epoch is raised", cmp.Or(m.Why, "the engine went back behind what it had acknowledged"))
	} else {
		cli.Say(cmd, "the engine was not seen to have gone back: if it was restored all the same, end the processes that led before (%s)", sessionsAlive(living))
	}
	first := fence.NewToken(to, 1)
	cli.Say(cmd, "epoch %d: every token from now on is at least %d; sinks that have seen one refuse all older ones, for good", to, first)
	if to > m.Epoch+1 {
		cli.Say(cmd, "that is more than one epoch above the present one: sinks that have seen none between will refuse it until `tenure fence advance`")
	}
	if wait > 0 {
		cli.Say(cmd, "it waits for %v first, so that whoever led before the restore has stopped", wait)
	}
}

func sessionsAlive(n int) string {
	if n == 1 {
		return "1 session is alive"
	}
	return fmt.Sprintf("%d sessions are alive", n)
}

func sessionsOf(ctx context.Context, s operator.Store) (n int, longest time.Duration, err error) {
	for l, err := range s.Candidates(ctx, lease.Scope{"*"}) {
		if err != nil {
			return 0, 0, err
		}
		n++
		longest = max(longest, l.TTL)
	}
	return n, longest, nil
}
