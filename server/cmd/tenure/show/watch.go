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
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/storecli"
)

const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// The states of a group in an event.
var led, vacant, unknown = tenure.Led.String(), tenure.Vacant.String(), tenure.Unknown.String()

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
		Args:     storecli.Scope,
		Complete: []storecli.Completion{storecli.CompleteGroup},
		Check: func(args []string) error {
			switch {
			case until == "":
			case until != led && until != vacant:
				return fmt.Errorf("until: %q is neither led nor vacant", until)
			case len(args) == 0 || strings.Contains(strings.Join(args, ""), "*"):
				return errors.New("until: name the groups, without patterns")
			}
			return nil
		},
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			w := &watcher{Run: r, scope: storecli.ScopeOf(args), until: until, limit: limit, shown: make(map[string]feed.Event), newest: make(map[string]point)}
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
	scope lease.Scope
	until string
	limit int

	shown  map[string]feed.Event // the last event that was printed for each group
	newest map[string]point      // the newest begin or end that was printed
	lines  int
	synced bool // the first snapshot of this connection is complete
}

// point is the begin or the end of a term.
type point struct {
	token fence.Token
	ended bool
}

func (p point) before(q point) bool {
	return p.token < q.token || p.token == q.token && !p.ended && q.ended
}

func (w *watcher) run(ctx context.Context) error {
	backoff := minBackoff
	for {
		w.synced = false
		err := w.follow(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errFinished), storecli.Denied(err), errors.Is(err, lease.ErrInvalid):
			return err
		}
		if w.synced {
			backoff = minBackoff
		}
		w.Say("cannot reach the store, retrying: %v", err)
		for group, e := range w.shown {
			if e.State == unknown {
				continue
			}
			e.State, e.Reason, e.Snapshot = unknown, "", false
			if err := w.print(group, e); err != nil {
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
		case lease.Synced:
			err = w.completeSnapshot()
		case lease.GroupChanged:
			err = w.change(u.View)
		case lease.SessionBegan, lease.SessionEnded:
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
		if _, ok := w.shown[name]; !ok && !strings.HasSuffix(name, "*") {
			if err := w.print(name, feed.Event{Group: name, State: vacant, Snapshot: true}); err != nil {
				return err
			}
		}
	}
	return w.checkUntil()
}

// change prints what happened since the last view of the group. The record holds the
// newest terms, so it shows what views in between would have shown.
func (w *watcher) change(v lease.View) error {
	if _, known := w.shown[v.Group]; !known {
		return w.print(v.Group, current(v, !w.synced))
	}
	from := w.newest[v.Group]
	if len(v.Terms) > 0 && v.Terms[0].Token > from.token+1 && len(v.Terms) == lease.TermsKept {
		w.Say("terms of %s before %d were missed; see `tenure history %s`", v.Group, v.Terms[0].Token, v.Group)
	}
	for i, t := range v.Terms {
		last := i == len(v.Terms)-1
		e := feed.Event{Group: v.Group, State: vacant, Token: t.Token, Holder: t.Candidate, SinceMS: t.Begin.UnixMilli(), Reason: string(t.Reason)}
		if from.before(point{t.Token, false}) {
			began := e
			began.State, began.Reason = led, ""
			if last {
				began.Address, began.Metadata = v.Candidate.Address, v.Candidate.Metadata
			}
			if err := w.print(v.Group, began); err != nil {
				return err
			}
		}
		if ended := !last || v.State != tenure.Led; ended && from.before(point{t.Token, true}) {
			if err := w.print(v.Group, e); err != nil {
				return err
			}
		}
	}
	if w.shown[v.Group].State == unknown {
		return w.print(v.Group, current(v, true)) // nothing happened while the store was away
	}
	return nil
}

// current is the event for the state of a group.
func current(v lease.View, snapshot bool) feed.Event {
	e := feed.Event{Group: v.Group, State: vacant, Token: v.Token, Holder: v.Candidate.ID, Snapshot: snapshot}
	if n := len(v.Terms); n > 0 {
		e.SinceMS, e.Reason = v.Terms[n-1].Begin.UnixMilli(), string(v.Terms[n-1].Reason)
	}
	if v.State == tenure.Led {
		e.State, e.Reason, e.Address, e.Metadata = led, "", v.Candidate.Address, v.Candidate.Metadata
	}
	return e
}

func (w *watcher) print(group string, e feed.Event) error {
	w.shown[group] = e
	if at := (point{e.Token, e.State != led}); e.State != unknown && w.newest[group].before(at) {
		w.newest[group] = at
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
		if w.shown[name].State != w.until {
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
