package lease

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// Elector campaigns for one group with its node's session. It is a tenure.Elector.
type Elector struct {
	node  *Node
	group string
}

var _ tenure.Elector = (*Elector)(nil)

// ErrLed is returned by TryCampaign if another process leads the group.
var ErrLed = machine.ErrLed

// ErrCampaigning is returned if the node already campaigns for the group.
var ErrCampaigning = errors.New("lease: this node campaigns for the group already")

var (
	errNoContext = &store.ArgumentError{Field: "context", Rule: "must not be nil"}
	errNoElector = &store.ArgumentError{Field: "elector", Rule: "must not be nil"}
)

// Group returns the elector's group.
func (e *Elector) Group() string { return e.group }

// Campaign implements tenure.Elector. A node can have one campaign per group at a time;
// a second one fails with ErrCampaigning. If ctx ends just when the campaign wins,
// Campaign returns the term, and the caller must resign it if it is not wanted.
func (e *Elector) Campaign(ctx context.Context) (*tenure.Term, error) {
	return e.campaign(ctx, false)
}

// TryCampaign is a Campaign that fails with ErrLed if another process leads. It still waits
// for the store to answer, and for the candidates that are before this one in line.
func (e *Elector) TryCampaign(ctx context.Context) (*tenure.Term, error) {
	return e.campaign(ctx, true)
}

func (e *Elector) campaign(ctx context.Context, once bool) (*tenure.Term, error) {
	switch {
	case e == nil:
		return nil, errNoElector
	case ctx == nil:
		return nil, errNoContext
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	n := e.node
	result := make(chan outcome, 1)
	w := &waiter{tell: func(o outcome) { result <- o }}
	if err := n.stand(e.group, once, w); err != nil {
		return nil, err
	}
	select {
	case o := <-result:
		return o.term, o.err
	case <-ctx.Done():
	}
	if n.withdraw(e.group, w) != nil {
		return nil, context.Cause(ctx)
	}
	o := <-result
	return o.term, o.err
}

// stand starts a campaign.
func (n *Node) stand(group string, once bool, w *waiter) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closing:
		return ErrClosed
	case n.waiters[group] != nil:
		return fmt.Errorf("group %q: %w", group, ErrCampaigning)
	}
	n.waiters[group] = w
	n.queue = append(n.queue, machine.Event{Kind: machine.OnCampaign, Group: group, Once: once})
	n.wakeLoop()
	return nil
}

// withdraw ends a campaign that still waits and returns its waiter. If w is not nil, it ends only
// the campaign of w.
func (n *Node) withdraw(group string, w *waiter) *waiter {
	n.mu.Lock()
	defer n.mu.Unlock()
	waits := n.waiters[group]
	if waits == nil || w != nil && waits != w {
		return nil
	}
	delete(n.waiters, group)
	n.queue = append(n.queue, machine.Event{Kind: machine.OnWithdraw, Group: group})
	n.wakeLoop()
	return waits
}

// Leader implements tenure.Elector.
func (e *Elector) Leader(ctx context.Context) (tenure.Leader, error) {
	switch {
	case e == nil:
		return tenure.Leader{}, errNoElector
	case ctx == nil:
		return tenure.Leader{Group: e.group}, errNoContext
	}
	n := e.node
	asked := n.cfg.Clock.Now()
	v, err := call(ctx, n, func(ctx context.Context) (store.View, error) { return n.store.Read(ctx, e.group) })
	if err != nil {
		return tenure.Leader{Group: e.group}, fmt.Errorf("lease: reading the leader of group %q: %w", e.group, err)
	}
	n.mu.Lock()
	if last, ok := n.answers[e.group]; !ok || asked > last.asked {
		n.answers[e.group] = answer{v.Leader(), asked}
	}
	n.mu.Unlock()
	return v.Leader(), nil
}

// Recall returns the last answer of Leader on this node, and its age, counted from
// when Leader was called. It does not call the store, so it also works without a
// quorum. Before the first answer it returns Unknown.
//
// Use it for display, and for routing that tolerates a wrong answer: another process
// may lead by now.
func (e *Elector) Recall() (tenure.Leader, time.Duration) {
	n := e.node
	n.mu.Lock()
	defer n.mu.Unlock()
	a, ok := n.answers[e.group]
	if !ok {
		return tenure.Leader{Group: e.group}, 0
	}
	return a.leader, n.cfg.Clock.Now().Sub(a.asked)
}

// Leaders implements tenure.Elector.
func (e *Elector) Leaders(ctx context.Context) iter.Seq2[tenure.Leader, error] {
	return func(yield func(tenure.Leader, error) bool) {
		if ctx == nil {
			yield(tenure.Leader{Group: e.group}, errNoContext)
			return
		}
		var seen store.Cursor
		blind := true // the last state that the caller got is Unknown, or there was none
		wait := e.node.cfg.BackoffMin
		for ctx.Err() == nil {
			err := errors.New("the watch ended")
			for u, werr := range e.node.store.Watch(ctx, store.Scope{e.group}) {
				if werr != nil {
					err = werr
					break
				}
				wait = e.node.cfg.BackoffMin
				v := u.View
				switch {
				case u.Kind == store.Synced && blind:
					v = machine.VacantFromTheStart(e.group) // no record: never led
				case u.Kind != store.GroupChanged, v.Version == 0 && seen.State == tenure.Vacant: // its record was removed
					continue
				}
				var changes []tenure.Leader
				if seen.State != tenure.Unknown {
					var err error
					if changes, err = e.since(ctx, v, seen); err != nil && !yield(tenure.Leader{Group: e.group}, err) {
						return
					}
				}
				if blind && len(changes) == 0 {
					changes = []tenure.Leader{v.Leader()}
				}
				seen, blind = store.Cursor{Token: v.Token, State: v.State}, false
				for _, l := range changes {
					if !yield(l, nil) {
						return
					}
				}
			}
			if ctx.Err() != nil {
				return
			}
			blind = true
			if !yield(tenure.Leader{Group: e.group}, fmt.Errorf("lease: watching group %q: %w", e.group, err)) {
				return
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
			wait = min(2*wait, e.node.cfg.BackoffMax)
		}
	}
}

// since returns the changes after the cursor. Terms that are no longer in the record
// come from the history. If the history cannot be read, since returns an error and
// the changes that it knows.
func (e *Elector) since(ctx context.Context, v store.View, seen store.Cursor) ([]tenure.Leader, error) {
	changes, complete := store.Since(v, seen)
	if complete || v.Token < seen.Token {
		return changes, nil
	}
	older, err := call(ctx, e.node, func(ctx context.Context) ([]store.Term, error) {
		return e.node.store.History(ctx, e.group, store.Page{})
	})
	if err != nil {
		return changes, fmt.Errorf("lease: reading the terms of group %q after token %d: %w", e.group, seen.Token, err)
	}
	slices.Reverse(older)
	for len(older) > 0 && len(v.Terms) > 0 && older[len(older)-1].Token >= v.Terms[0].Token {
		older = older[:len(older)-1]
	}
	v.Terms = append(older, v.Terms...)
	changes, _ = store.Since(v, seen)
	return changes, nil
}

// grant connects a term with its node.
type grant struct {
	node  *Node
	group string
	token fence.Token
	holds store.SessionID // the session that holds the grant

	// The successor that was looked up last. The node's lock guards these fields.
	successor string
	session   store.SessionID
	found     clock.Instant
}

// hintFor is how long a session that was found is used without another listing. A candidate
// that restarts gets a new session, and the old one stays alive for its TTL.
const hintFor = 100 * time.Millisecond

func (g *grant) Ended(cause error) {
	g.node.push(machine.Event{Kind: machine.OnEnded, Group: g.group, Token: g.token, Cause: cause})
}

func (g *grant) Successor(ctx context.Context, candidate string) error {
	n := g.node
	line, err := call(ctx, n, func(ctx context.Context) ([]store.Session, error) {
		return n.store.Sessions(ctx, store.Scope{g.group}, store.Page{})
	})
	if err != nil {
		return fmt.Errorf("lease: looking for candidate %q of group %q: %w", candidate, g.group, err)
	}
	if found := machine.Newest(line, candidate, ""); found != "" {
		n.mu.Lock()
		g.successor, g.session, g.found = candidate, found, n.cfg.Clock.Now()
		n.mu.Unlock()
		return nil
	}
	return fmt.Errorf("lease: candidate %q does not stand for group %q: %w", candidate, g.group, store.ErrSuccessor)
}

// suspectTries is how often a report is sent. The term ends even if all fail.
const suspectTries = 3

func (g *grant) Suspect(ctx context.Context, seen fence.Token) error {
	n := g.node
	if n.cfg.planted.Has(plant.RetryStaleSeal) {
		return nil
	}
	v, err := call(ctx, n, func(ctx context.Context) (store.View, error) { return n.store.Read(ctx, g.group) })
	if err != nil {
		return fmt.Errorf("lease: reading group %q: %w", g.group, err)
	}
	if v.State != tenure.Led || v.Token != g.token || v.Holder != g.holds {
		return nil
	}
	for range suspectTries {
		if _, err = call(ctx, n, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, n.store.Suspect(ctx, g.group, seen)
		}); err == nil || store.Definite(err) {
			break
		}
	}
	lost := fmt.Errorf("lease: group %q was granted with token %d, but a sink has seen token %d (epoch %d): %w", g.group, g.token, seen, seen.Epoch(), tenure.ErrDataLost)
	if err != nil {
		lost = fmt.Errorf("%w; the store could not be told to grant nothing more: %w", lost, err)
	}
	n.cfg.Log.Error("tenure: the store lost data", "group", g.group, "token", g.token, "seen", seen, "error", lost)
	return lost
}

// call calls the store outside the machine, with the machine's timeout.
func call[T any](ctx context.Context, n *Node, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.CallTimeout)
	defer cancel()
	return f(ctx)
}

func (g *grant) Release(ctx context.Context, candidate string) error {
	n := g.node
	key := settleKey{g.group, g.token}
	settled := make(chan error, 1)
	n.mu.Lock()
	if n.ended {
		n.mu.Unlock()
		return ErrClosed
	}
	n.settles[key] = append(n.settles[key], settled)
	e := machine.Event{Kind: machine.OnReturned, Group: g.group, Token: g.token, To: candidate}
	if candidate != "" && candidate == g.successor && n.cfg.Clock.Now().Sub(g.found) < hintFor {
		e.Session = g.session
	}
	n.mu.Unlock()
	n.push(e)
	select {
	case err := <-settled:
		return err
	case <-ctx.Done():
		return fmt.Errorf("lease: the release of group %q (token %d) is not confirmed: %w", g.group, g.token, context.Cause(ctx))
	}
}
