package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
)

func denied(verb auth.Verb, group string) *httpapi.Problem {
	return &httpapi.Problem{
		Status: http.StatusForbidden, Code: "denied",
		Detail: fmt.Sprintf("the policy of this service does not allow the caller to %s on %q; ask its operator", verb, clip(group)),
	}
}

// covers checks a verb on every group of a scope.
func (s *Service) covers(id auth.Identity, verb auth.Verb, scope lease.Scope) error {
	if err := scope.Validate(); err != nil {
		return err
	}
	for _, p := range scope {
		if !s.may(id, verb, p) {
			return denied(verb, p)
		}
	}
	return nil
}

// may reports whether the caller has the verb on a group, or on all that begin so.
func (s *Service) may(id auth.Identity, verb auth.Verb, pattern string) bool {
	if n := len(pattern) - 1; n >= 0 && pattern[n] == '*' {
		// A prefix of a policy that covers the beginning covers all that follow it.
		return s.gate.May(id, verb, pattern[:n])
	}
	return s.gate.May(id, verb, pattern)
}

func (s *Service) openSession(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	id := auth.From(ctx)
	var in SessionRequest
	if err := s.body(w, r, false, &in); err != nil {
		return err
	}
	if err := id.Is(in.NodeID); err != nil {
		return err
	}
	candidate := tenure.Candidate{ID: in.NodeID, Address: in.Address, Metadata: in.Metadata, Priority: in.Priority}
	if err := errors.Join(lease.CheckCandidate(candidate), s.covers(id, auth.Campaign, in.Groups)); err != nil {
		return err
	}
	instance, _ := instanceOf(in.Instance)
	o := lease.OpenOptions{Scope: in.Groups, Instance: instance, Attempt: attempt("session", in.Groups)}
	if err := o.Validate(); err != nil {
		return err
	}
	asked, err := s.askedTTL(in.TTLMS)
	if err != nil {
		return err
	}
	ttl := asked
	def(&ttl, s.cfg.TTL)
	if err := s.sessions.room(in.NodeID, o); err != nil {
		return err
	}
	session, err := s.open(ctx, candidate, asked, ttl, o)
	s.audit(ctx, "open session", "", 0, err, in.NodeID)
	if err != nil {
		return err
	}
	httpapi.WriteJSON(w, http.StatusCreated, Session{
		Handle: s.sessionHandle(session), NodeID: in.NodeID, Groups: in.Groups, TTLMS: session.TTL.Milliseconds(), Deployment: s.deployment,
	})
	return nil
}

// mine returns the session of a handle if it is the caller's, and the caller may still
// stand for all that the session does: who lost a right must not keep what it leads by it.
func (s *Service) mine(ctx context.Context, h handle) (lease.Session, error) {
	session, err := s.whose(ctx, h)
	if err == nil {
		err = s.covers(auth.From(ctx), auth.Campaign, session.Scope)
	}
	return session, err
}

// whose returns the session of a handle if it is the caller's.
func (s *Service) whose(ctx context.Context, h handle) (lease.Session, error) {
	session, err := s.sessions.find(ctx, h.session)
	if err != nil {
		return lease.Session{}, err
	}
	if auth.From(ctx).Is(session.Candidate.ID) != nil {
		return lease.Session{}, notYours()
	}
	return session, nil
}

func (s *Service) keepSession(w http.ResponseWriter, r *http.Request) error {
	h, err := s.parseHandle(r.PathValue("handle"))
	if err != nil {
		return err
	}
	session, err := s.mine(r.Context(), h)
	if err == nil {
		var beat lease.Beat
		sent := s.clock.Now()
		if beat, err = s.engine.KeepAlive(r.Context(), session.ID); err == nil {
			httpapi.WriteJSON(w, http.StatusOK, Beat{TTLMS: beat.TTL.Milliseconds(), Expiry: s.expiry(sent, beat.TTL), Requests: requestsFor(beat.Requests, "", 0)})
			return nil
		}
	}
	s.metrics.renewFailed(err)
	s.audit(r.Context(), "keep session alive", "", 0, err, "")
	return err
}

func (s *Service) closeSession(w http.ResponseWriter, r *http.Request) error {
	h, err := s.parseHandle(r.PathValue("handle"))
	if err != nil {
		return err
	}
	session, err := s.whose(r.Context(), h)
	if errors.Is(err, lease.ErrSessionDead) {
		httpapi.WriteJSON(w, http.StatusOK, Closed{Groups: []string{}})
		return nil
	}
	if err != nil {
		return err
	}
	held := s.feed.Held(session.ID)
	err = s.engine.Close(r.Context(), session.ID, lease.Closed)
	s.audit(r.Context(), "close session", "", 0, err, session.Candidate.ID)
	if err != nil {
		return err
	}
	httpapi.WriteJSON(w, http.StatusOK, Closed{Groups: held})
	return nil
}
