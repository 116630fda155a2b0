package election

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// Claim is the term that a client claims to hold.
type Claim struct {
	Group   string
	Node    string
	Term    fence.Token
	Session store.SessionID
	// Own: a campaign opened the session for this group. It ends with the term, so that
	// nobody hands the group over to a client that has left.
	Own   bool
	Plant plant.Set
}

// Holds reports whether the record confirms the claim.
func (c Claim) Holds(v store.View) bool {
	return v.State == tenure.Led && v.Holder == c.Session && v.Token == c.Term && v.Candidate.ID == c.Node
}

// Ended reports whether the record shows that the claimed term has ended.
func (c Claim) Ended(v store.View) bool {
	return (v.Token > c.Term || v.State == tenure.Vacant) && slices.ContainsFunc(v.Terms, func(t store.Term) bool {
		return t.Token == c.Term && t.Session == c.Session && t.Candidate == c.Node
	})
}

// NotLeaderError means that the client does not lead. The view says who does.
type NotLeaderError struct{ View store.View }

func (e *NotLeaderError) Error() string {
	return fmt.Sprintf("election: the term is over: group %q is %s", e.View.Group, e.View.State)
}

// Renew keeps the session of a claim alive, and confirms that the record still names it with
// that term. Both happen after the client sent its request, so the client may count its lease
// from then. The caller must have checked that the session belongs to the client.
func Renew(ctx context.Context, s store.Store, c Claim) (store.View, store.Beat, error) {
	beat, err := s.KeepAlive(ctx, c.Session, c.Group)
	switch {
	case err == nil:
		v := store.View{Record: beat.Records[0], State: tenure.Led}
		if c.Plant.Has(plant.RenewAnyTerm) {
			c.Term = v.Token
		}
		if c.Holds(v) {
			return v, beat, nil
		}
	case !errors.Is(err, store.ErrSessionDead):
		return store.View{}, beat, err
	}
	return store.View{}, beat, c.notLeader(ctx, s)
}

// notLeader returns a NotLeaderError with the current view.
func (c Claim) notLeader(ctx context.Context, s store.Store) error {
	v, err := s.Read(ctx, c.Group)
	if err != nil {
		return err
	}
	if c.Holds(v) {
		v.State = tenure.Vacant // the session died just now
	}
	return &NotLeaderError{v}
}

// Resigned is the result of a resignation.
type Resigned struct {
	Term fence.Token
	To   string // the leader of Term; "": nobody leads, and Term has ended
	// Left is the error of closing the session of the claim, or of answering a request. It
	// needs no action: session and request expire.
	Left error
}

// Successor finds the session of a node that may lead the group next. It returns ErrSuccessor
// if there is none.
type Successor func(ctx context.Context, node string) (store.Session, error)

// Resign ends the term of a claim. The group goes to the successor to, or else to the one that a
// waiting transfer request names, if there is one. If the term has already ended, Resign
// succeeds, so a retry gets the same answer.
func Resign(ctx context.Context, s store.Store, find Successor, c Claim, to string) (Resigned, error) {
	out := Resigned{Term: c.Term}
	v, err := s.Read(ctx, c.Group)
	if c.Plant.Has(plant.ResignAnyTerm) {
		c.Term = v.Token
	}
	switch {
	case err != nil:
		return out, err
	case c.Ended(v):
		return out, nil
	case !c.Holds(v):
		return out, &NotLeaderError{v}
	}
	// Before the keep-alive: a refused resignation must not extend the session.
	var next store.Session
	if to != "" {
		if next, err = find(ctx, to); err != nil {
			return out, err
		}
	}
	beat, err := s.KeepAlive(ctx, c.Session)
	switch {
	case errors.Is(err, store.ErrSessionDead):
		return out, nil
	case err != nil:
		return out, err
	}
	asked := slices.DeleteFunc(beat.Requests, func(r store.Request) bool { return r.Group != c.Group })
	if to == "" {
		if next, err = c.requested(ctx, find, asked); err != nil {
			return out, err
		}
	}
	released, err := c.release(ctx, s, next.ID, asked, v.Record)
	if errors.Is(err, store.ErrSuccessor) && to == "" {
		next = store.Session{} // the requested successor has just left
		released, err = c.release(ctx, s, "", asked, v.Record)
	}
	if err != nil {
		// Whatever failed, the resignation has succeeded if the term has ended.
		if v, rerr := s.Read(ctx, c.Group); rerr == nil && !errors.Is(err, store.ErrSuccessor) && c.Ended(v) {
			err = nil
		}
		return out, err
	}
	out.Left = c.settle(ctx, s, asked, next.Candidate.ID)
	if c.Own {
		// End refuses if the session leads again: a retry of the campaign has the same session.
		err := s.End(ctx, c.Session, store.Resigned, released...)
		if !errors.Is(err, store.ErrConflict) {
			out.Left = errors.Join(out.Left, err)
		}
	}
	if next.ID != "" {
		out.Term, out.To = released[0].Token, released[0].Candidate.ID
	}
	return out, nil
}

// release releases the record. Ending the session alone would not store when and why the term
// ended.
func (c Claim) release(ctx context.Context, s store.Store, to store.SessionID, asked []store.Request, held store.Record) ([]store.Record, error) {
	return s.Release(ctx, c.Session, to, c.reason(asked, to), held)
}

// Concerns reports whether a request is about this term of the group, and not about an earlier
// term of the same session.
func Concerns(r store.Request, group string, term fence.Token) bool {
	return r.Group == group && (r.Token == 0 || r.Token == term)
}

// requested finds the session of the candidate that a waiting transfer request names. It returns
// none if there is no such request, or if the candidate has left or may not lead.
func (c Claim) requested(ctx context.Context, find Successor, asked []store.Request) (store.Session, error) {
	for _, r := range asked {
		if r.Verb != store.Transfer || !Concerns(r, c.Group, c.Term) {
			continue
		}
		if next, err := find(ctx, r.To); !errors.Is(err, store.ErrSuccessor) {
			return next, err
		}
	}
	return store.Session{}, nil
}

// reason is why the leader's term ends: a step-down request, a transfer or a resignation.
func (c Claim) reason(asked []store.Request, to store.SessionID) store.Reason {
	stepDown := slices.ContainsFunc(asked, func(r store.Request) bool {
		return r.Verb == store.StepDown && Concerns(r, c.Group, c.Term)
	})
	switch {
	case stepDown:
		return store.SteppedDown
	case to != "":
		return store.Transferred
	}
	return store.Resigned
}

// settle answers the requests after the group was released to the candidate to, or to nobody.
func (c Claim) settle(ctx context.Context, s store.Store, asked []store.Request, to string) error {
	var failed error
	for _, r := range asked {
		answer := store.Answer{Outcome: store.Done, Detail: "resigned"}
		switch {
		case r.Verb != store.Transfer || r.To == to:
		case to == "":
			answer = store.Answer{Outcome: store.Refused, Detail: fmt.Sprintf("candidate %q left or may not lead; the group was released", r.To)}
		default:
			answer = store.Answer{Outcome: store.Refused, Detail: fmt.Sprintf("the group was handed to %q", to)}
		}
		err := s.Answer(ctx, c.Session, r.ID, answer)
		if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrSessionDead) {
			failed = fmt.Errorf("answer request %s: %w", r.ID, err)
		}
	}
	return failed
}
