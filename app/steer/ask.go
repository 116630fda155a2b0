package steer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
)

const (
	// requestLife is how long a request waits for its leader at least.
	requestLife = time.Minute
	answerPause = 100 * time.Millisecond
)

const (
	gaveUp       = "it has given up the group"
	sessionEnded = "its session has ended"
	nobodyLeads  = "the term ended without the transfer: nobody leads"
)

// MaxCoolDown is the longest.
const MaxCoolDown = 24 * time.Hour

// Order is what an operator wants of the leader of a group.
type Order struct {
	Verb     lease.Verb
	To       string // transfer
	Reason   string
	CoolDown time.Duration
	// Wait is how long to wait for the leader's answer.
	Wait time.Duration
	// Look tells, if it can, who leads: a hint when to read the store, which alone tells
	// that the leader has given up. Default: it is read every time.
	Look func(context.Context) (v lease.View, known bool)
}

// Asked is what came of it: an outcome of the leader's, Waiting or Ended.
type Asked struct {
	Outcome lease.Outcome
	Detail  string
}

const (
	// Waiting: the leader has been asked and has not answered yet.
	Waiting lease.Outcome = "waiting"
	// Ended: the term is over, and the group was not handed to the successor that a
	// transfer named.
	Ended lease.Outcome = "ended"
)

// Ask leaves a request with the session that leads in the view, for that term and no
// other, and waits for what becomes of it. Nobody takes a group out of a living session:
// its owner learns of the request with its next beat, stops its work, and answers. Whether
// a transfer succeeded is read from the record: what counts is who leads next.
func (s Store) Ask(ctx context.Context, v lease.View, o Order) (Asked, error) {
	request := lease.Request{
		ID: strings.ToLower(rand.Text()), Verb: o.Verb, Group: v.Group, Token: v.Token, To: o.To, Reason: o.Reason,
		CoolDown: o.CoolDown, TTL: max(requestLife, 2*o.Wait),
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Call)
	err := s.Store.Ask(call, v.Holder, request)
	cancel()
	if err != nil && !errors.Is(err, lease.ErrSessionDead) {
		return Asked{}, err
	}
	if err != nil && o.Verb != lease.Transfer {
		return Asked{lease.Done, "its session had ended already"}, nil
	}
	waiting, cancel := context.WithTimeout(ctx, o.Wait)
	defer cancel()
	tick := time.NewTicker(answerPause)
	defer tick.Stop()
	pending := Asked{Waiting, "the leader was asked and has not answered yet: it learns of the request with its next renewal"}
	for {
		select {
		case <-tick.C:
		case <-waiting.Done():
			return pending, nil
		}
		out, ok := s.answered(waiting, v, request.ID, o)
		if ok && o.Verb == lease.Transfer {
			pending = Asked{Ended, nobodyLeads}
			out, ok = s.transferred(waiting, v, o.To, out)
		}
		if ok {
			return out, nil
		}
	}
}

func (s Store) answered(ctx context.Context, v lease.View, request string, o Order) (Asked, bool) {
	ctx, cancel := context.WithTimeout(ctx, s.Call)
	defer cancel()
	answer, err := s.Answered(ctx, v.Holder, request)
	switch {
	case err == nil && answer.Outcome == lease.Done && answer.Detail == "":
		return Asked{lease.Done, gaveUp}, true
	case err == nil && answer.Outcome != "":
		return Asked{answer.Outcome, answer.Detail}, true
	case errors.Is(err, lease.ErrSessionDead):
		return Asked{lease.Done, sessionEnded}, true
	}
	if o.Look != nil {
		if now, known := o.Look(ctx); !known || !over(v, now) {
			return Asked{}, false
		}
	}
	if now, err := s.Read(ctx, v.Group); err != nil || !over(v, now) {
		return Asked{}, false
	}
	return Asked{lease.Done, gaveUp}, true
}

// transferred says how a transfer ended of which the leader has said how it ended. While
// nobody leads it is not known: the target may lead in a moment. But a session that ended
// hands nothing over any more.
func (s Store) transferred(ctx context.Context, v lease.View, to string, said Asked) (Asked, bool) {
	ctx, cancel := context.WithTimeout(ctx, s.Call)
	defer cancel()
	now, err := s.Read(ctx, v.Group)
	if err != nil {
		return Asked{}, false
	}
	if !over(v, now) {
		return said, said.Outcome == lease.Refused
	}
	if now.State == tenure.Led && now.Candidate.ID == to {
		return Asked{lease.Done, gaveUp}, true
	}
	for _, t := range now.Terms {
		switch {
		case t.Token <= v.Token:
		case t.Candidate == to:
			return Asked{lease.Done, fmt.Sprintf("%q led with token %d, and has given up the group since", to, t.Token)}, true
		default:
			return Asked{Ended, fmt.Sprintf("the term ended without the transfer: %s leads with token %d, not %s", t.Candidate, t.Token, to)}, true
		}
	}
	if said.Detail == sessionEnded {
		return Asked{Ended, nobodyLeads}, true
	}
	return said, said.Outcome == lease.Refused
}

// over reports whether the term of v has ended, as a later view shows it. A view of an
// earlier term shows nothing.
func over(v, now lease.View) bool {
	return now.Token > v.Token || now.Token == v.Token && now.State != tenure.Led
}

// Bar says why a node may not begin to lead a group: nil if it may. An error that is no
// *BarError is the store's.
func (s Store) Bar(ctx context.Context, group, node string) error { return s.bar(ctx, group, node, 0) }

// bar is Bar, for a session that lasts ttl; 0: whichever.
func (s Store) bar(ctx context.Context, group, node string, ttl time.Duration) error {
	laid, err := s.read(ctx, Group(group))
	if err != nil {
		return err
	}
	p := ParsePolicy(laid)
	if err := p.Bar(group, node, time.Now()); err != nil {
		return err
	}
	if ttl > 0 && !Lasts(ttl, p.MinTTL, p.MaxTTL) {
		return &lease.ArgumentError{Field: "ttl", Value: ttl, Rule: fmt.Sprintf("the policy of group %q allows %s", group, p.bounds())}
	}
	attributes, err := s.read(ctx, Node(node))
	if err != nil {
		return err
	}
	if why, is := Cordoned(attributes); is {
		return CordonError(node, why)
	}
	return nil
}

// The codes of a BarError are those of the service's problems.
const (
	NoGroup     = "unknown_group"
	NotAMember  = "not_a_member"
	CoolingDown = "cooling_down"
	IsCordoned  = "cordoned"
)

// BarError: what was laid down keeps a node from leading a group.
type BarError struct {
	Code   string
	Detail string
	Left   time.Duration // until it ends by itself; 0: it does not
}

func (e *BarError) Error() string { return e.Detail }

// Unwrap: nothing was done, and later it may be.
func (e *BarError) Unwrap() error { return lease.ErrBusy }

// Bar is what the policy alone says.
func (p Policy) Bar(group, node string, now time.Time) error {
	switch {
	case p.Deleted:
		return &BarError{Code: NoGroup, Detail: fmt.Sprintf("there is no group %q: it was deleted", group)}
	case len(p.Members) > 0 && !slices.Contains(p.Members, node):
		return &BarError{Code: NotAMember, Detail: fmt.Sprintf("node %q is not among the members of group %q: an operator can add it to the policy", node, group)}
	}
	if until := p.Cooling(node); now.Before(until) {
		left := until.Sub(now)
		return &BarError{
			Code: CoolingDown, Left: left,
			Detail: fmt.Sprintf("node %q was asked to step down and is not to lead group %q for another %v", node, group, left.Round(time.Millisecond)),
		}
	}
	return nil
}

// bounds says which TTLs the policy allows.
func (p Policy) bounds() string {
	if p.MaxTTL == 0 {
		return fmt.Sprintf("no less than %v", p.MinTTL)
	}
	return fmt.Sprintf("from %v to %v", p.MinTTL, p.MaxTTL)
}

// CordonError is the bar of a node that is cordoned.
func CordonError(node, why string) *BarError {
	const most = 100
	if len(why) > most {
		why = why[:most] + "…"
	}
	return &BarError{Code: IsCordoned, Detail: fmt.Sprintf("node %q is cordoned (%s): it may not begin to lead until an operator lifts that", node, why)}
}

// Duplicate reports whether two sessions are of different processes that use one node id for
// the same group. Sessions that do not say which process opened them cannot be told apart.
func Duplicate(a, b lease.Session) bool {
	return a.Candidate.ID == b.Candidate.ID && a.Instance != b.Instance && a.Scope.Overlaps(b.Scope)
}

// Newest is the youngest living session of a candidate that stands for the group, and the
// zero Session if there is none.
func (s Store) Newest(ctx context.Context, group, candidate string) (lease.Session, error) {
	var found lease.Session
	for l, err := range s.Line(ctx, lease.Scope{group}) {
		if err != nil {
			return lease.Session{}, err
		}
		if l.Candidate.ID == candidate && l.Scope.Covers(group) && (found.ID == "" || l.Opened > found.Opened) {
			found = l
		}
	}
	return found, nil
}
