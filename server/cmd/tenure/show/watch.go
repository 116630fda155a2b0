package show

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/store"
)

const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// errFinished: --until or --limit is reached.
var errFinished = errors.New("finished")

func newWatch(env cli.Env) *cobra.Command {
	var until string
	var limit int
	cmd := storecli.New(env, storecli.Spec{
		Use:   "watch [GROUP|PREFIX*]...",
		Short: "Print changes of leadership until interrupted.",
		Long: `Print the current state of the groups, then every change: a term began (led), a term
ended (vacant), or the store cannot be reached (unknown: the leader may still lead). Each
begin and each end is printed once, even if the connection was lost in between. -o json
prints one value per line, as ndjson does.`,
		Example: `  tenure watch billing
  tenure watch 'shard-*' -o ndjson
  tenure watch billing --until=led               # waits for a leader`,
		Args: storecli.Scope,
		Check: func(args []string) error {
			switch {
			case until == "":
			case until != tenure.Led.String() && until != tenure.Vacant.String():
				return fmt.Errorf("until: %q is neither led nor vacant", until)
			case len(args) == 0 || strings.Contains(strings.Join(args, ""), "*"):
				return errors.New("until: name the groups, without patterns")
			}
			return nil
		},
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			w := newWatcher(r, storecli.ScopeOf(args))
			w.until, w.limit = until, limit
			if err := w.run(ctx); !errors.Is(err, errFinished) {
				return err
			}
			return nil
		},
	})
	cmd.Flags().StringVar(&until, "until", "", "exit when all groups are in this state: led or vacant")
	cmd.Flags().IntVar(&limit, "limit", 0, "exit after this many lines (default: never)")
	return cmd
}

// watcher prints each change once, across reconnects.
type watcher struct {
	*storecli.Run
	scope store.Scope
	until string
	limit int

	shown  map[string]tenure.Leader // what was printed last for each group
	seen   map[string]store.Cursor  // up to where each group's history was printed
	lines  int
	synced bool // the first snapshot of this connection is complete
}

func newWatcher(r *storecli.Run, scope store.Scope) *watcher {
	return &watcher{Run: r, scope: scope, shown: make(map[string]tenure.Leader), seen: make(map[string]store.Cursor)}
}

func (w *watcher) run(ctx context.Context) error {
	backoff, away := minBackoff, false
	for {
		w.synced = false
		err := w.follow(ctx)
		var exit *cli.ExitError // standard output cannot be written
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errFinished), errors.As(err, &exit), storecli.Denied(err), errors.Is(err, store.ErrInvalid):
			return err
		}
		if w.synced {
			backoff, away = minBackoff, false
		}
		if !away { // once per outage
			w.Say("cannot reach the store, retrying: %v", err)
			away = true
		}
		for _, l := range w.shown {
			if l.State == tenure.Unknown {
				continue
			}
			l.State, l.Reason = tenure.Unknown, ""
			if err := w.print(l, false); err != nil {
				return err
			}
		}
		select {
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		case <-ctx.Done():
			return nil
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

func (w *watcher) follow(ctx context.Context) error {
	for u, err := range w.Watch(ctx, w.scope) {
		if err != nil {
			return err
		}
		switch u.Kind {
		case store.Synced:
			err = w.completeSnapshot()
		case store.GroupChanged:
			err = w.change(u.View)
		case store.SessionBegan, store.SessionEnded:
		}
		if err != nil {
			return err
		}
	}
	return errors.New("the watch ended")
}

// completeSnapshot prints named groups that were never led as vacant.
func (w *watcher) completeSnapshot() error {
	w.synced = true
	for _, name := range w.scope {
		if _, ok := w.seen[name]; !ok && !strings.HasSuffix(name, "*") {
			if err := w.change(store.View{Record: store.Record{Group: name}, State: tenure.Vacant}); err != nil {
				return err
			}
		}
	}
	return w.checkUntil()
}

// change prints what happened since the last view of the group. The record holds the
// newest terms, so nothing is lost between two views.
func (w *watcher) change(v store.View) error {
	after, known := w.seen[v.Group]
	w.seen[v.Group] = store.Cursor{Token: v.Token, State: v.State}
	if !known {
		return w.print(v.Leader(), !w.synced || v.Token == 0)
	}
	changes, complete := store.Since(v, after)
	if !complete {
		w.Say("some terms of %s were missed; see `tenure history %s`", v.Group, v.Group)
	}
	for _, l := range changes {
		if err := w.print(l, false); err != nil {
			return err
		}
	}
	if w.shown[v.Group].State == tenure.Unknown {
		return w.print(v.Leader(), true) // nothing happened while the store was away
	}
	return nil
}

func (w *watcher) print(l tenure.Leader, snapshot bool) error {
	w.shown[l.Group] = l
	e := feed.Event{Group: l.Group, State: l.State.String(), Token: l.Token, Holder: l.Candidate.ID, Reason: l.Reason, Snapshot: snapshot}
	if !l.Since.IsZero() {
		e.SinceMS = l.Since.UnixMilli()
	}
	if l.State == tenure.Led {
		e.Address, e.Metadata = l.Candidate.Address, l.Candidate.Metadata
	}
	if err := eventTable.Stream(w.Out, e); err != nil {
		return err
	}
	if w.lines++; w.lines == w.limit {
		return errFinished
	}
	if w.synced {
		return w.checkUntil()
	}
	return nil
}

// checkUntil ends the watch when every group is in the state of --until.
func (w *watcher) checkUntil() error {
	if w.until == "" {
		return nil
	}
	for _, name := range w.scope {
		if l, ok := w.shown[name]; !ok || l.State.String() != w.until {
			return nil
		}
	}
	return errFinished
}

var eventTable = cli.Table[feed.Event]{
	Columns: []string{"TIME", "GROUP", "STATE", "NODE", "TERM", "REASON"},
	Row: func(e feed.Event) []string {
		return []string{time.Now().UTC().Format("15:04:05.000"), e.Group, e.State, storecli.Dash(e.Holder), e.Token.String(), e.Reason}
	},
	Name: func(e feed.Event) string { return e.Group },
}
