package service

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/election"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
)

// claim checks the term that a caller says it holds. Without a handle the session is not known yet.
func (s *Service) claim(r *http.Request, node string, term fence.Token, text string) (election.Claim, handle, error) {
	c := election.Claim{Group: groupOf(r), Node: node, Term: term}
	if err := cmp.Or(auth.Is(r.Context(), node), store.CheckGroup(c.Group)); err != nil {
		return c, handle{}, err
	}
	switch {
	case !store.ValidName(node):
		return c, handle{}, badNode("node_id", node)
	case !term.Valid():
		return c, handle{}, bad("bad_argument", "term: want the number from the answer of the campaign")
	case text == "":
		return c, handle{}, nil
	}
	h, err := s.parseHandle(text)
	c.Session = h.session
	return c, h, err
}

// notLeading turns the end of a term into a problem.
func notLeading(err error) error {
	var over *election.NotLeaderError
	if errors.As(err, &over) {
		return notLeader(over.View)
	}
	return err
}

func (s *Service) renew(_ http.ResponseWriter, r *http.Request, in RenewRequest) (any, error) {
	c, _, err := s.claim(r, in.NodeID, in.Term, in.Handle)
	if err != nil {
		return nil, err
	}
	began := s.clock.Now()
	var v store.View
	var beat store.Beat
	if err = s.byTerm(r.Context(), &c); err == nil {
		_, err = s.owned(r.Context(), c.Session, c.Node) // a renewal of one group renews all that the session leads
	}
	if err == nil || errors.Is(err, store.ErrSessionDead) {
		v, beat, err = election.Renew(r.Context(), s.engine, c)
	}
	if err = notLeading(err); err != nil {
		s.metrics.RenewFailed(err)
		s.audit(r.Context(), "renew", c.Group, c.Term, err, "")
		return nil, err
	}
	out := Renewed{
		Group: c.Group, LeaderNodeID: v.Candidate.ID, Term: v.Token, TTLMS: beat.TTL.Milliseconds(), Expiry: s.expiry(began, beat.TTL),
		Requests: requestsFor(beat.Requests, c.Group, v.Token),
	}
	if in.ExtendByMS != 0 {
		out.ExtendedByMS, out.GroupsExtended = out.TTLMS, max(1, s.feed.Holds(v.Holder))
	}
	return out, nil
}

func (s *Service) resign(_ http.ResponseWriter, r *http.Request, in ResignRequest) (any, error) {
	c, h, err := s.claim(r, in.NodeID, in.Term, in.Handle)
	if err == nil && in.Successor != "" && !store.ValidName(in.Successor) {
		err = badNode("successor", in.Successor)
	}
	if err != nil {
		return nil, err
	}
	ctx, began := r.Context(), time.Now()
	c.Own = s.endsWithTerm(ctx, h, c.Group)
	find := func(ctx context.Context, node string) (store.Session, error) { return s.successor(ctx, c.Group, node) }
	out, err := election.Resign(ctx, s.engine, find, c, in.Successor)
	if p := (*httpapi.Problem)(nil); errors.Is(err, store.ErrSuccessor) && !errors.As(err, &p) {
		err = noSuccessor(c.Group, in.Successor, "it left just now")
	}
	if out.Left != nil {
		s.cfg.Log.Warn("the term has ended, but part of it stays until it expires", "group", c.Group, "node", c.Node, "err", out.Left)
	}
	err = notLeading(err)
	s.audit(ctx, "resign", c.Group, c.Term, err, in.Successor)
	if err != nil {
		return nil, err
	}
	s.spans.Handover(ctx, began, c.Group, c.Term, out.To, string(store.Done))
	return Resigned{Group: c.Group, Term: out.Term, LeaderNodeID: out.To}, nil
}

// endsWithTerm reports whether a campaign opened the session of the handle for this group
// alone. Older versions made handles that do not tell, so it checks the session too.
func (s *Service) endsWithTerm(ctx context.Context, h handle, group string) bool {
	if h.hint != group {
		return false
	}
	session, err := s.sessions.Find(ctx, h.session)
	return err == nil && slices.Equal(session.Scope, store.Scope{group})
}

// successor returns the session of a candidate that may lead the group next.
func (s *Service) successor(ctx context.Context, group, node string) (store.Session, error) {
	policy, attributes, err := s.policyOf(ctx, group, node)
	if err != nil {
		return store.Session{}, err
	}
	to, err := s.operations().Newest(ctx, group, node)
	if err == nil && to.ID == "" {
		err = noSuccessor(group, node, "it is not a candidate")
	}
	if err != nil {
		return to, err
	}
	if p := s.admits(policy, attributes, group, to); p != nil {
		return to, noSuccessor(group, node, p.Detail)
	}
	return to, nil
}

// byTerm finds the session of a claim without a handle. Node and term are enough: a renewal
// by mistake only prolongs the term.
func (s *Service) byTerm(ctx context.Context, c *election.Claim) error {
	if c.Session != "" {
		return nil
	}
	a, err := s.reader.Read(ctx, c.Group)
	if err != nil {
		return err
	}
	if a.State != tenure.Led || a.Token != c.Term || a.Candidate.ID != c.Node {
		return notLeader(a.View)
	}
	c.Session = a.Holder
	return nil
}

// requestsFor encodes the requests about a term of the group; with no group, all of them.
func requestsFor(all []store.Request, group string, term fence.Token) []Request {
	var out []Request
	for _, r := range all {
		if group == "" || election.Concerns(r, group, term) {
			out = append(out, Request{
				ID: r.ID, Verb: string(r.Verb), Group: r.Group, Term: r.Token, To: r.To, Reason: r.Reason, CoolDown: r.CoolDown.Milliseconds(),
			})
		}
	}
	return out
}
