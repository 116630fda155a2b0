package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/operator"
)

const (
	watchPauseMin = 200 * time.Millisecond
	watchPauseMax = 5 * time.Second
)

// errEnough ends a watch that has seen what it was to wait for.
var errEnough = errors.New("enough")

func newWatch(env func(string) (string, bool)) *cobra.Command {
	d := &desk{}
	var until string
	var limit int
	cmd := d.verb(&cobra.Command{
		Use:   "watch [GROUP|BEGINNING*]...",
		Short: "Follow who leads, until Ctrl-C",
		Long: `Print how things stand, then each change: a term began (led), ended (vacant), or the
engine cannot be seen (unknown: whoever led may lead on). Each beginning and each end is
printed once, also when the connection was lost meanwhile. -o json prints one value a
line, as ndjson does.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, err := scopeOf(args)
			if err != nil {
				return err
			}
			state := until
			if state != "" && state != tenure.Led.String() && state != tenure.Vacant.String() {
				return cli.Exit(exitUsage, fmt.Errorf("until: %q is neither led nor vacant", state))
			}
			if state != "" && (len(args) == 0 || strings.Contains(strings.Join(args, ""), "*")) {
				return cli.Exit(exitUsage, errors.New("until: say which groups, by name"))
			}
			return d.with(cmd, func(ctx context.Context, s operator.Store) error {
				w := &watcher{cmd: cmd, out: &d.out, scope: scope, until: state, limit: limit, seen: make(map[string]feed.Event)}
				return w.run(ctx, s)
			})
		},
	}, env, aGroup)
	cmd.Flags().StringVar(&until, "until", "", "end when all groups are so: led or vacant")
	cmd.Flags().IntVar(&limit, "limit", 0, "end after so many lines (default never)")
	return cmd
}

// watcher prints each change once, through all interruptions.
type watcher struct {
	cmd   *cobra.Command
	out   *cli.Output
	scope lease.Scope
	until string
	limit int

	seen map[string]feed.Event // what was printed last of each group
	last map[string]place      // the newest beginning or end that was printed
	told int
	live bool // the snapshot of this connection is complete
}

// place is a beginning or an end: a term is led before it is vacant.
type place struct {
	token fence.Token
	ended bool
}

func (p place) before(q place) bool {
	return p.token < q.token || p.token == q.token && !p.ended && q.ended
}

func (w *watcher) run(ctx context.Context, s operator.Store) error {
	w.last = make(map[string]place)
	pause := watchPauseMin
	for {
		w.live = false
		err := w.follow(ctx, s)
		switch {
		case errors.Is(err, errEnough), ctx.Err() != nil:
			return nil
		case denied(err), errors.Is(err, lease.ErrInvalid):
			return err
		}
		if w.live {
			pause = watchPauseMin
		}
		cli.Say(w.cmd, "the store cannot be seen (%v): trying again", err)
		for group, e := range w.seen {
			if e.State == tenure.Unknown.String() {
				continue
			}
			e.State, e.Reason, e.Snapshot = tenure.Unknown.String(), "", false
			if err := w.print(group, e); err != nil {
				return enough(err)
			}
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
			return nil
		}
		pause = min(2*pause, watchPauseMax)
	}
}

func enough(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (w *watcher) follow(ctx context.Context, s operator.Store) error {
	for u, err := range s.Watch(ctx, w.scope) {
		if err != nil {
			return err
		}
		switch u.Kind {
		case lease.Synced:
			err = w.complete()
		case lease.GroupChanged:
			err = w.view(u.View)
		case lease.SessionBegan, lease.SessionEnded:
		}
		if err != nil {
			return err
		}
	}
	return errors.New("the watch has ended")
}

// complete: what is named and was never led is vacant.
func (w *watcher) complete() error {
	w.live = true
	for _, name := range w.scope {
		if _, ok := w.seen[name]; !ok && !strings.HasSuffix(name, "*") {
			if err := w.print(name, feed.Event{Group: name, State: tenure.Vacant.String(), Snapshot: true}); err != nil {
				return err
			}
		}
	}
	return w.check()
}

// view prints what has happened since the last view of the group. The record carries its
// newest terms, so what a view has skipped is in it.
func (w *watcher) view(v lease.View) error {
	if _, known := w.seen[v.Group]; !known {
		return w.print(v.Group, w.now(v, !w.live))
	}
	from := w.last[v.Group]
	if len(v.Terms) > 0 && v.Terms[0].Token > from.token+1 && len(v.Terms) == lease.TermsKept {
		cli.Say(w.cmd, "terms of %s before %d were missed: see `tenure history %s`", v.Group, v.Terms[0].Token, v.Group)
	}
	for i, t := range v.Terms {
		present := i == len(v.Terms)-1
		e := feed.Event{Group: v.Group, State: tenure.Vacant.String(), Token: t.Token, Holder: t.Candidate, SinceMS: t.Begin.UnixMilli(), Reason: string(t.Reason)}
		if from.before(place{t.Token, false}) {
			began := e
			began.State, began.Reason = tenure.Led.String(), ""
			if present {
				began.Address, began.Metadata = v.Candidate.Address, v.Candidate.Metadata
			}
			if err := w.print(v.Group, began); err != nil {
				return err
			}
		}
		if over := !present || v.State != tenure.Led; over && from.before(place{t.Token, true}) {
			if err := w.print(v.Group, e); err != nil {
				return err
			}
		}
	}
	if w.seen[v.Group].State == tenure.Unknown.String() {
		return w.print(v.Group, w.now(v, true)) // nothing has happened: it is known again
	}
	return nil
}

// now is how a group stands.
func (w *watcher) now(v lease.View, snapshot bool) feed.Event {
	e := feed.Event{Group: v.Group, State: tenure.Vacant.String(), Token: v.Token, Holder: v.Candidate.ID, Snapshot: snapshot}
	if n := len(v.Terms); n > 0 {
		e.SinceMS, e.Reason = v.Terms[n-1].Begin.UnixMilli(), string(v.Terms[n-1].Reason)
	}
	if v.State == tenure.Led {
		e.State, e.Reason, e.Address, e.Metadata = tenure.Led.String(), "", v.Candidate.Address, v.Candidate.Metadata
	}
	return e
}

func (w *watcher) print(group string, e feed.Event) error {
	w.seen[group] = e
	if e.State != tenure.Unknown.String() {
		if at := (place{e.Token, e.State != tenure.Led.String()}); w.last[group].before(at) {
			w.last[group] = at
		}
	}
	if err := eventSheet().Stream(w.cmd.OutOrStdout(), w.out, e); err != nil {
		return err
	}
	if w.told++; w.told == w.limit {
		return errEnough
	}
	if w.live {
		return w.check()
	}
	return nil
}

// check ends the watch when every group is as it was to become.
func (w *watcher) check() error {
	if w.until == "" {
		return nil
	}
	for _, name := range w.scope {
		if w.seen[name].State != w.until {
			return nil
		}
	}
	return errEnough
}

func eventSheet() cli.Sheet[feed.Event] {
	return cli.Sheet[feed.Event]{
		Columns: []cli.Column[feed.Event]{
			{Head: "TIME", Cell: func(feed.Event) string { return time.Now().UTC().Format("15:04:05.000") }},
			{Head: "GROUP", Cell: func(e feed.Event) string { return e.Group }},
			{Head: "STATE", Cell: func(e feed.Event) string { return e.State }, Paint: func(e feed.Event) cli.Colour { return stateColour(e.State) }},
			{Head: "NODE", Cell: func(e feed.Event) string { return dash(e.Holder) }},
			{Head: "TERM", Cell: func(e feed.Event) string { return e.Token.String() }},
			{Head: "WHY", Cell: func(e feed.Event) string { return e.Reason }},
		},
		Name: func(e feed.Event) string { return e.Group },
	}
}
