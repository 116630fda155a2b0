package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/app/service/access"
	"github.com/tenurehq/tenure/app/steer"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

// claim is what a caller says it holds.
type claim struct {
	group, node string
	term        fence.Token
	handle      handle
}

// claim reads what a caller says it holds. Without a handle the session is not known yet.
func (s *Service) claim(r *http.Request, node string, term fence.Token, handle string) (claim, error) {
	c := claim{group: groupOf(r), node: node, term: term}
	if err := access.From(r.Context()).Is(node); err != nil {
		return c, err
	}
	if !lease.ValidName(node) {
		return c, bad("bad_argument", "node_id: %q is no name of a node", clip(node))
	}
	if err := lease.CheckGroup(c.group); err != nil {
		return c, err
	}
	if !term.Valid() {
		return c, bad("bad_argument", "term: the number that the campaign answered")
	}
	if handle == "" {
		return c, nil
	}
	var err error
	c.handle, err = s.parseHandle(handle)
	return c, err
}

// holds reports whether the record says what the caller says.
func (c claim) holds(v lease.View) bool {
	return v.State == tenure.Led && v.Holder == c.handle.session && v.Token == c.term && v.Candidate.ID == c.node
}

// ended reports whether the record remembers that this very term is over.
func (c claim) ended(v lease.View) bool {
	for _, t := range v.Terms {
		if t.Token == c.term && t.Session == c.handle.session && t.Candidate == c.node {
			return v.Token > c.term || v.State == tenure.Vacant
		}
	}
	return false
}

func (s *Service) renew(w http.ResponseWriter, r *http.Request) error {
	var in RenewRequest
	if err := s.body(w, r, false, &in); err != nil {
		return err
	}
	c, err := s.claim(r, in.NodeID, in.Term, in.Handle)
	if err != nil {
		return err
	}
	began := s.clock.Now()
	var v lease.View
	var beat lease.Beat
	if err = s.byTerm(r.Context(), &c); err == nil {
		v, beat, err = s.extend(r.Context(), c)
	}
	if err != nil {
		s.metrics.renewFailed(err)
		s.audit(r.Context(), "renew", c.group, c.term, err, "")
		return err
	}
	out := Renewed{
		Group: c.group, LeaderNodeID: v.Candidate.ID, Term: v.Token, TTLMS: beat.TTL.Milliseconds(), Expiry: s.expiry(began, beat.TTL),
		Requests: requestsFor(beat.Requests, c.group, v.Token),
	}
	if in.ExtendByMS != 0 {
		out.ExtendedByMS, out.GroupsExtended = out.TTLMS, max(1, s.feed.Holds(v.Holder))
	}
	httpapi.WriteJSON(w, http.StatusOK, out)
	return nil
}

// extend keeps the session alive if it is the caller's, and confirms that the record
// still names it with that term. Both happen after the caller sent its request, so its
// lease may be counted from there.
func (s *Service) extend(ctx context.Context, c claim) (lease.View, lease.Beat, error) {
	err := s.entitled(ctx, c)
	var beat lease.Beat
	if err == nil {
		beat, _, err = s.keep(ctx, c.handle.session, c.group)
	}
	dead := errors.Is(err, lease.ErrSessionDead)
	if err != nil && !dead {
		return lease.View{}, beat, err
	}
	if !dead {
		if v := (lease.View{Record: beat.Records[0], State: tenure.Led}); c.holds(v) {
			return v, beat, nil
		}
	}
	a, err := s.reader.Read(ctx, c.group) // who leads instead
	if err != nil {
		return a.View, beat, err
	}
	if c.holds(a.View) {
		a.State = tenure.Vacant
	}
	return a.View, beat, notLeader(a.View)
}

// entitled checks that the session of a claim is the caller's, and that the caller may
// campaign for all that the session stands for: a renewal of one group keeps them all. For
// the group itself the gate has asked.
func (s *Service) entitled(ctx context.Context, c claim) error {
	session, err := s.sessions.find(ctx, c.handle.session)
	if err != nil {
		return err
	}
	if session.Candidate.ID != c.node {
		return notYours()
	}
	id := access.From(ctx)
	for _, p := range session.Scope {
		if p != c.group && !s.may(id, access.Campaign, p) {
			return denied(access.Campaign, p)
		}
	}
	return nil
}

// wish reads what the candidate wished for when it last led the group. Who leads within a
// session that is open has its TTL already.
func (s *Service) wish(ctx context.Context, c *contest) (steer.Wish, error) {
	if c.within.session != "" {
		return steer.Wish{}, nil
	}
	a, err := s.attributes(ctx, steer.Wishes(c.candidate.ID))
	return steer.WishFor(a, c.group), err
}

// fulfil forgets the wish that the session of a campaign was opened with, now that it
// leads: it was for that session and no other. While the candidate stands in line the wish
// stays, or each call of a repeated campaign would be for another session.
func (s *Service) fulfil(ctx context.Context, c *contest) {
	if c.earlier.TTL == 0 {
		return
	}
	if err := s.hand().Fulfil(ctx, c.candidate.ID, c.group, c.earlier); err != nil {
		s.cfg.Log.Warn("a wish for another TTL that was honoured could not be removed: the next session will have it too", "node", c.candidate.ID, "group", c.group, "err", err)
	}
}

func (s *Service) resign(w http.ResponseWriter, r *http.Request) error {
	var in ResignRequest
	if err := s.body(w, r, false, &in); err != nil {
		return err
	}
	c, err := s.claim(r, in.NodeID, in.Term, in.Handle)
	if err != nil {
		return err
	}
	if in.Successor != "" && !lease.ValidName(in.Successor) {
		return bad("bad_argument", "successor: %q is no name of a node", clip(in.Successor))
	}
	began := time.Now()
	out, err := s.giveBack(r.Context(), c, in.Successor)
	s.audit(r.Context(), "resign", c.group, c.term, err, in.Successor)
	if err != nil {
		return err
	}
	s.traceHandover(r.Context(), began, c.group, c.term, out.LeaderNodeID, string(lease.Done))
	httpapi.WriteJSON(w, http.StatusOK, out)
	return nil
}

// giveBack releases the group: to the successor, if one is named, or else to the one that
// a pending transfer request names, if it is still a candidate. A term that is over was
// given back before: the same call repeated has the same answer. The session of a campaign
// ends with its term, so that nobody hands the group to a client that has left.
func (s *Service) giveBack(ctx context.Context, c claim, successor string) (Resigned, error) {
	gone := Resigned{Group: c.group, Term: c.term}
	a, err := s.reader.Read(ctx, c.group)
	v := a.View
	switch {
	case err != nil:
		return gone, err
	case c.ended(v):
		return gone, nil
	case !c.holds(v):
		return gone, notLeader(v)
	}
	s.sessions.seen(v)
	// First, for a resignation that is refused must not have kept the session alive.
	var to lease.Session
	if successor != "" {
		if to, err = s.successor(ctx, c.group, successor); err != nil {
			return gone, err
		}
	}
	beat, _, err := s.keep(ctx, v.Holder)
	switch {
	case errors.Is(err, lease.ErrSessionDead):
		return gone, nil
	case err != nil:
		return gone, err
	}
	if to.ID == "" {
		if to, err = s.requested(ctx, beat.Requests, v); err != nil {
			return gone, err
		}
	}
	undo, closable := func() {}, s.endsWithTerm(ctx, c)
	if closable {
		undo, err = s.markClosing(ctx, v.Holder, c.group)
		closable = err == nil // or the session is left to expire
	}
	rec, err := s.release(ctx, v, to.ID, reasonOf(beat.Requests, c.group, v.Token, to.ID))
	if errors.Is(err, lease.ErrSuccessor) && successor == "" {
		to = lease.Session{} // the one that was asked for left just now
		rec, err = s.release(ctx, v, "", lease.Resigned)
	}
	if err != nil {
		undo()
		if errors.Is(err, lease.ErrSuccessor) {
			return gone, noSuccessor(c.group, successor, "it left just now")
		}
		// Unknown, dead or moved on: what counts is whether the term is over.
		if a, rerr := s.reader.Read(ctx, c.group); rerr == nil && c.ended(a.View) {
			return gone, nil
		}
		return gone, err
	}
	s.settle(ctx, v, beat.Requests, to.Candidate.ID)
	if closable {
		s.close(ctx, lease.Session{ID: v.Holder, Candidate: v.Candidate, Scope: lease.Scope{c.group}}, lease.Resigned)
	}
	if to.ID != "" {
		return Resigned{Group: c.group, Term: rec.Token, LeaderNodeID: rec.Candidate.ID}, nil
	}
	return gone, nil
}

// endsWithTerm reports whether a campaign opened the session of a claim, for this group and
// no other. Older versions gave out handles that do not tell, so the session is asked too.
func (s *Service) endsWithTerm(ctx context.Context, c claim) bool {
	if c.handle.hint != c.group {
		return false
	}
	session, err := s.sessions.find(ctx, c.handle.session)
	return err == nil && slices.Equal(session.Scope, lease.Scope{c.group})
}

func (s *Service) release(ctx context.Context, v lease.View, to lease.SessionID, why lease.Reason) (lease.Record, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	released, err := s.store.Release(ctx, v.Holder, to, why, v.Record)
	if err != nil {
		return lease.Record{}, err
	}
	return released[0], nil
}

// requested finds the session of the candidate that a pending request for a transfer
// names. There is none if nobody asked, or if the candidate has left or may not lead.
func (s *Service) requested(ctx context.Context, asked []lease.Request, v lease.View) (lease.Session, error) {
	for _, r := range asked {
		if r.Verb != lease.Transfer || !concerns(r, v.Group, v.Token) {
			continue
		}
		to, err := s.successor(ctx, v.Group, r.To)
		if err == nil || !isProblem(err) {
			return to, err
		}
	}
	return lease.Session{}, nil
}

// reasonOf is why a term ends that its leader gives up: because it was asked to, maybe.
func reasonOf(asked []lease.Request, group string, term fence.Token, to lease.SessionID) lease.Reason {
	why := lease.Resigned
	if to != "" {
		why = lease.Transferred
	}
	for _, r := range asked {
		if concerns(r, group, term) && r.Verb == lease.StepDown {
			why = lease.SteppedDown
		}
	}
	return why
}

// successor finds the session of a candidate that may lead the group next.
func (s *Service) successor(ctx context.Context, group, node string) (lease.Session, error) {
	pol, attributes, err := s.terms(ctx, group, node)
	if err != nil {
		return lease.Session{}, err
	}
	to, err := s.sessions.newest(ctx, group, node)
	if err != nil {
		return to, err
	}
	if to.ID == "" {
		return to, noSuccessor(group, node, "it does not stand in line")
	}
	if p := s.fits(pol, attributes, group, to); p != nil {
		return to, noSuccessor(group, node, p.Detail)
	}
	return to, nil
}

func noSuccessor(group, node, why string) *httpapi.Problem {
	return &httpapi.Problem{
		Status: http.StatusConflict, Code: "no_successor",
		Detail: fmt.Sprintf("node %q cannot lead group %q next: %s; nothing was changed: resign without it, or name another", node, group, why),
	}
}
