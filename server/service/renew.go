package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/election"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
)

// claim reads what a caller says it holds. Without a handle the session is not known yet.
func (s *Service) claim(r *http.Request, node string, term fence.Token, text string) (election.Claim, handle, error) {
	c := election.Claim{Group: groupOf(r), Node: node, Term: term}
	if err := auth.From(r.Context()).Is(node); err != nil {
		return c, handle{}, err
	}
	if !lease.ValidName(node) {
		return c, handle{}, bad("bad_argument", "node_id: %q is no name of a node", clip(node))
	}
	if err := lease.CheckGroup(c.Group); err != nil {
		return c, handle{}, err
	}
	if !term.Valid() {
		return c, handle{}, bad("bad_argument", "term: the number that the campaign answered")
	}
	if text == "" {
		return c, handle{}, nil
	}
	h, err := s.parseHandle(text)
	c.Session = h.session
	return c, h, err
}

// notLeading says the end of a term as a problem.
func notLeading(err error) error {
	var over *election.NotLeaderError
	if errors.As(err, &over) {
		return notLeader(over.View)
	}
	return err
}

func (s *Service) renew(w http.ResponseWriter, r *http.Request) error {
	var in RenewRequest
	if err := s.body(w, r, false, &in); err != nil {
		return err
	}
	c, _, err := s.claim(r, in.NodeID, in.Term, in.Handle)
	if err != nil {
		return err
	}
	began := s.clock.Now()
	var v lease.View
	var beat lease.Beat
	if err = s.byTerm(r.Context(), &c); err == nil {
		err = s.entitled(r.Context(), c)
	}
	if err == nil || errors.Is(err, lease.ErrSessionDead) {
		v, beat, err = election.Renew(r.Context(), s.engine, c)
	}
	if err = notLeading(err); err != nil {
		s.metrics.renewFailed(err)
		s.audit(r.Context(), "renew", c.Group, c.Term, err, "")
		return err
	}
	out := Renewed{
		Group: c.Group, LeaderNodeID: v.Candidate.ID, Term: v.Token, TTLMS: beat.TTL.Milliseconds(), Expiry: s.expiry(began, beat.TTL),
		Requests: requestsFor(beat.Requests, c.Group, v.Token),
	}
	if in.ExtendByMS != 0 {
		out.ExtendedByMS, out.GroupsExtended = out.TTLMS, max(1, s.feed.Holds(v.Holder))
	}
	httpapi.WriteJSON(w, http.StatusOK, out)
	return nil
}

// entitled checks that the session of a claim is the caller's, and that the caller may
// campaign for all that the session stands for: a renewal of one group keeps them all. For
// the group itself the gate has asked.
func (s *Service) entitled(ctx context.Context, c election.Claim) error {
	session, err := s.sessions.find(ctx, c.Session)
	if err != nil {
		return err
	}
	if session.Candidate.ID != c.Node {
		return notYours()
	}
	id := auth.From(ctx)
	for _, p := range session.Scope {
		if p != c.Group && !s.may(id, auth.Campaign, p) {
			return denied(auth.Campaign, p)
		}
	}
	return nil
}

func (s *Service) resign(w http.ResponseWriter, r *http.Request) error {
	var in ResignRequest
	if err := s.body(w, r, false, &in); err != nil {
		return err
	}
	c, h, err := s.claim(r, in.NodeID, in.Term, in.Handle)
	if err != nil {
		return err
	}
	if in.Successor != "" && !lease.ValidName(in.Successor) {
		return bad("bad_argument", "successor: %q is no name of a node", clip(in.Successor))
	}
	ctx, began := r.Context(), time.Now()
	c.Own = s.endsWithTerm(ctx, h, c.Group)
	find := func(ctx context.Context, node string) (lease.Session, error) { return s.successor(ctx, c.Group, node) }
	out, err := election.Resign(ctx, s.engine, find, c, in.Successor)
	if errors.Is(err, lease.ErrSuccessor) && !isProblem(err) {
		err = noSuccessor(c.Group, in.Successor, "it left just now")
	}
	if out.Left != nil {
		s.cfg.Log.Warn("the term is over, and something of it is left until it expires", "group", c.Group, "node", c.Node, "err", out.Left)
	}
	err = notLeading(err)
	s.audit(ctx, "resign", c.Group, c.Term, err, in.Successor)
	if err != nil {
		return err
	}
	s.traceHandover(ctx, began, c.Group, c.Term, out.To, string(lease.Done))
	httpapi.WriteJSON(w, http.StatusOK, Resigned{Group: c.Group, Term: out.Term, LeaderNodeID: out.To})
	return nil
}

func isProblem(err error) bool {
	var p *httpapi.Problem
	return errors.As(err, &p)
}

// endsWithTerm reports whether a campaign opened the session of a handle, for this group and
// no other. Older versions gave out handles that do not tell, so the session is asked too.
func (s *Service) endsWithTerm(ctx context.Context, h handle, group string) bool {
	if h.hint != group {
		return false
	}
	session, err := s.sessions.find(ctx, h.session)
	return err == nil && slices.Equal(session.Scope, lease.Scope{group})
}

// successor finds the session of a candidate that may lead the group next.
func (s *Service) successor(ctx context.Context, group, node string) (lease.Session, error) {
	policies, attributes, err := s.policiesOf(ctx, node, group)
	if err != nil {
		return lease.Session{}, err
	}
	to, err := s.hand().Newest(ctx, group, node)
	if err != nil {
		return to, err
	}
	if to.ID == "" {
		return to, noSuccessor(group, node, "it does not stand in line")
	}
	if p := s.admits(policies[0], attributes, group, to); p != nil {
		return to, noSuccessor(group, node, p.Detail)
	}
	return to, nil
}

func noSuccessor(group, node, why string) error {
	return errors.Join(lease.ErrSuccessor, &httpapi.Problem{
		Status: http.StatusConflict, Code: "no_successor",
		Detail: fmt.Sprintf("node %q cannot lead group %q next: %s; nothing was changed: resign without it, or name another", node, group, why),
	})
}
