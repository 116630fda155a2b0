package operator

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/policy"
	"github.com/tenurehq/tenure/store"
)

const (
	// requestLife is how long a request waits for the leader at least.
	requestLife = time.Minute
	answerPause = 100 * time.Millisecond
)

const (
	resigned     = "the leader has resigned"
	sessionEnded = "the session of the leader has ended"
	leaseExpired = "the lease of the leader had already expired: it stopped without being asked"
	nobodyLeads  = "the term ended without the transfer: nobody leads"
)

// MaxCoolDown is the longest cool-down.
const MaxCoolDown = 24 * time.Hour

// Order is what an operator wants of the leader of a group.
type Order struct {
	Verb     store.Verb
	To       string // transfer
	Reason   string
	CoolDown time.Duration
	// Wait is how long to wait for the answer of the leader.
	Wait time.Duration
	// Look returns a cached view, if there is one: a hint when to read the store. Only the
	// store tells that the leader has resigned. Default: the store is read every time.
	Look func(context.Context) (v store.View, known bool)
}

// Asked is the result of an order: an outcome from the leader, Waiting or Ended.
type Asked struct {
	Outcome store.Outcome
	Detail  string
}

const (
	// Waiting: the leader has been asked and has not answered yet.
	Waiting store.Outcome = "waiting"
	// Ended: the term has ended, but the successor that a transfer named does not lead.
	Ended store.Outcome = "ended"
)

// Ask leaves a request with the session that leads in the view, for that term only, and waits
// for the outcome. Nobody takes a group out of a living session: its owner gets the request
// with its next keep-alive, stops its work, and answers. The record tells whether a transfer
// succeeded: what counts is who leads next.
func (s Store) Ask(ctx context.Context, v store.View, o Order) (Asked, error) {
	request := store.Request{
		ID: strings.ToLower(rand.Text()), Verb: o.Verb, Group: v.Group, Token: v.Token, To: o.To, Reason: o.Reason,
		CoolDown: o.CoolDown, TTL: max(requestLife, 2*o.Wait),
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Call)
	err := s.Store.Ask(call, v.Holder, request)
	cancel()
	if err != nil && !errors.Is(err, store.ErrSessionDead) {
		return Asked{}, err
	}
	if err != nil && o.Verb != store.Transfer {
		return s.sessionEnded(ctx, v), nil
	}
	waiting, cancel := context.WithTimeout(ctx, o.Wait)
	defer cancel()
	tick := time.NewTicker(answerPause)
	defer tick.Stop()
	pending := Asked{Waiting, "the leader has not answered yet: it gets the request with its next renewal"}
	for {
		select {
		case <-tick.C:
		case <-waiting.Done():
			return pending, nil
		}
		out, ok := s.answered(waiting, v, request.ID, o)
		if ok && o.Verb == store.Transfer {
			pending = Asked{Ended, nobodyLeads}
			out, ok = s.transferred(waiting, v, o.To, out)
		}
		if ok {
			return out, nil
		}
	}
}

func (s Store) answered(ctx context.Context, v store.View, request string, o Order) (Asked, bool) {
	ctx, cancel := context.WithTimeout(ctx, s.Call)
	defer cancel()
	answer, err := s.Answered(ctx, v.Holder, request)
	switch {
	case err == nil && answer.Outcome == store.Done:
		return Asked{store.Done, cmp.Or(answer.Detail, resigned)}, true
	case err == nil && answer.Outcome != "":
		return Asked(answer), true
	case errors.Is(err, store.ErrSessionDead):
		return s.sessionEnded(ctx, v), true
	}
	if o.Look != nil {
		if now, known := o.Look(ctx); !known || !over(v, now) {
			return Asked{}, false
		}
	}
	if now, err := s.Read(ctx, v.Group); err != nil || !over(v, now) {
		return Asked{}, false
	}
	return Asked{store.Done, resigned}, true
}

// sessionEnded is the outcome of an order to a leader whose session has ended. It says why if
// the record does.
func (s Store) sessionEnded(ctx context.Context, v store.View) Asked {
	ctx, cancel := context.WithTimeout(ctx, s.Call)
	defer cancel()
	if now, err := s.Read(ctx, v.Group); err == nil {
		changes, _ := store.Since(now, store.Cursor{Token: v.Token, State: tenure.Led})
		if len(changes) > 0 && changes[0].Token == v.Token && (changes[0].Reason == string(store.Expired) || changes[0].Reason == string(store.Lost)) {
			return Asked{store.Done, leaseExpired}
		}
	}
	return Asked{store.Done, sessionEnded}
}

// transferred returns the outcome of a transfer after the leader has answered. While nobody
// leads it is not known yet: the target may lead in a moment. But after the session of the
// leader has ended, it hands nothing over.
func (s Store) transferred(ctx context.Context, v store.View, to string, said Asked) (Asked, bool) {
	ctx, cancel := context.WithTimeout(ctx, s.Call)
	defer cancel()
	now, err := s.Read(ctx, v.Group)
	if err != nil {
		return Asked{}, false
	}
	if !over(v, now) {
		return said, said.Outcome == store.Refused
	}
	if now.State == tenure.Led && now.Candidate.ID == to {
		return Asked{store.Done, resigned}, true
	}
	for _, t := range now.Terms {
		switch {
		case t.Token <= v.Token:
		case t.Candidate == to:
			return Asked{store.Done, fmt.Sprintf("%q led with token %d and has resigned since", to, t.Token)}, true
		default:
			return Asked{Ended, fmt.Sprintf("the term ended without the transfer: %s leads with token %d, not %s", t.Candidate, t.Token, to)}, true
		}
	}
	if said.Detail == sessionEnded || said.Detail == leaseExpired {
		return Asked{Ended, nobodyLeads}, true
	}
	return said, said.Outcome == store.Refused
}

// over reports whether a later view shows that the term of v has ended. A view of an earlier
// term shows nothing.
func over(v, now store.View) bool {
	return now.Token > v.Token || now.Token == v.Token && now.State != tenure.Led
}

// Bar returns the *store.BarError that keeps a node from beginning to lead a group now, or nil.
// Any other error is one of the store.
func (s Store) Bar(ctx context.Context, group, node string) error {
	laid, err := s.read(ctx, Group(group))
	if err != nil {
		return err
	}
	attributes, err := s.read(ctx, Node(node))
	if err != nil {
		return err
	}
	if bar := Check(policy.Claim{Group: group, Node: node, Now: time.Now()}, laid, attributes); bar != nil {
		return bar
	}
	return nil
}

// Check returns what keeps a claim from being granted, from the attributes of the group and the
// node, or nil.
func Check(c policy.Claim, group, node store.Attributes) *store.BarError {
	b := c.Check(group.Values, node.Values)
	if b == nil {
		return nil
	}
	return &store.BarError{Code: b.Code, Group: b.Group, Detail: b.Detail, Left: b.Left, TTL: b.TTL, MinTTL: b.MinTTL, MaxTTL: b.MaxTTL}
}

// Duplicate reports whether two sessions belong to different processes that use one node id
// for the same group. Sessions without an instance cannot be distinguished.
func Duplicate(a, b store.Session) bool {
	return a.Candidate.ID == b.Candidate.ID && a.Instance != b.Instance && a.Scope.Overlaps(b.Scope)
}

// Newest returns the newest living session of a candidate for the group, or the zero Session.
func (s Store) Newest(ctx context.Context, group, candidate string) (store.Session, error) {
	var found store.Session
	for l, err := range s.Candidates(ctx, store.Scope{group}) {
		if err != nil {
			return store.Session{}, err
		}
		if l.Candidate.ID == candidate && l.Scope.Covers(group) && (found.ID == "" || l.Opened > found.Opened) {
			found = l
		}
	}
	return found, nil
}
