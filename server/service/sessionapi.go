package service

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
)

// handle names a session of a deployment. It is opaque to clients. Its hint is the group if a
// campaign opened the session, and a prefix and "*" if the client did.
type handle struct {
	deployment string
	session    store.SessionID
	hint       string
}

const (
	handleVersion = "1"
	maxHandle     = 512
)

func (h handle) String() string {
	raw := strings.Join([]string{handleVersion, h.deployment, h.hint, string(h.session)}, "\x00")
	return base64.RawURLEncoding.EncodeToString([]byte(raw))
}

// handleOf is the handle of a session with this hint.
func (s *Service) handleOf(id store.SessionID, hint string) string {
	return handle{s.deployment, id, hint}.String()
}

// parseHandle decodes a handle of this deployment.
func (s *Service) parseHandle(text string) (handle, error) {
	if text == "" {
		return handle{}, required("handle", true)
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	parts := strings.Split(string(raw), "\x00")
	if err != nil || len(text) > maxHandle || len(parts) != 4 || parts[0] != handleVersion || parts[3] == "" || (store.Scope{parts[2]}).Validate() != nil {
		return handle{}, bad("bad_handle", "this service did not make this handle: send the one of the last campaign or session, unchanged")
	}
	if parts[1] != s.deployment {
		return handle{}, httpapi.Refuse(http.StatusConflict, "other_deployment", "the handle belongs to another deployment: stop acting, then campaign here")
	}
	return handle{parts[1], store.SessionID(parts[3]), parts[2]}, nil
}

// covers checks a verb on every pattern of a scope.
func (s *Service) covers(id auth.Identity, verb auth.Verb, scope store.Scope) error {
	for _, p := range scope {
		// A policy that allows a prefix allows every name that begins with it.
		if !s.gate.May(id, verb, strings.TrimSuffix(p, "*")) {
			return denied(verb, p)
		}
	}
	return nil
}

func (s *Service) openSession(_ http.ResponseWriter, r *http.Request, in SessionRequest) (any, error) {
	ctx := r.Context()
	id := auth.From(ctx)
	candidate := tenure.Candidate{ID: in.NodeID, Address: in.Address, Metadata: in.Metadata, Priority: in.Priority}
	instance, _ := instanceOf(in.Instance)
	o := store.OpenOptions{Scope: in.Groups, Instance: instance, Attempt: attempt("session", in.Groups)}
	err := cmp.Or(auth.Is(r.Context(), in.NodeID), store.CheckCandidate(candidate), o.Validate(), s.covers(id, auth.Campaign, in.Groups))
	if err != nil {
		return nil, err
	}
	asked, err := s.askedTTL(in.TTLMS)
	if err == nil {
		err = s.sessions.Room(in.NodeID, o)
	}
	if err != nil {
		return nil, err
	}
	session, err := s.open(ctx, candidate, asked, cmp.Or(asked, s.cfg.TTL), o)
	s.audit(ctx, "open session", "", 0, err, "")
	if err != nil {
		return nil, err
	}
	return withStatus{http.StatusCreated, Session{
		Handle: s.handleOf(session.ID, strings.TrimSuffix(session.Scope[0], "*")+"*"),
		NodeID: in.NodeID, Groups: in.Groups, TTLMS: session.TTL.Milliseconds(), Deployment: s.deployment,
	}}, nil
}

// owned returns a session if it belongs to the node, and if the caller may still
// campaign for everything in its scope: a caller that lost a right must not keep what it leads.
func (s *Service) owned(ctx context.Context, id store.SessionID, node string) (store.Session, error) {
	session, err := s.sessions.Find(ctx, id)
	if err != nil {
		return store.Session{}, err
	}
	if session.Candidate.ID != node {
		return store.Session{}, notYours()
	}
	return session, s.covers(auth.From(ctx), auth.Campaign, session.Scope)
}

// allowedSession returns the session of the handle in the path, as owned does for the caller.
func (s *Service) allowedSession(r *http.Request) (store.Session, error) {
	session, err := s.ownSession(r)
	if err == nil {
		err = s.covers(auth.From(r.Context()), auth.Campaign, session.Scope)
	}
	return session, err
}

// ownSession returns the session of the handle in the path if it belongs to the caller.
func (s *Service) ownSession(r *http.Request) (store.Session, error) {
	h, err := s.parseHandle(r.PathValue("handle"))
	if err != nil {
		return store.Session{}, err
	}
	session, err := s.sessions.Find(r.Context(), h.session)
	if err == nil && auth.Is(r.Context(), session.Candidate.ID) != nil {
		err = notYours()
	}
	return session, err
}

func (s *Service) keepSession(_ http.ResponseWriter, r *http.Request) (any, error) {
	if _, err := s.parseHandle(r.PathValue("handle")); err != nil {
		return nil, err
	}
	session, err := s.allowedSession(r)
	var beat store.Beat
	sent := s.clock.Now()
	if err == nil {
		beat, err = s.engine.KeepAlive(r.Context(), session.ID)
	}
	if err != nil {
		s.metrics.RenewFailed(err)
		s.audit(r.Context(), "keep session alive", "", 0, err, "")
		return nil, err
	}
	return Beat{TTLMS: beat.TTL.Milliseconds(), Expiry: s.expiry(sent, beat.TTL), Requests: requestsFor(beat.Requests, "", 0)}, nil
}

func (s *Service) closeSession(_ http.ResponseWriter, r *http.Request) (any, error) {
	session, err := s.ownSession(r)
	switch {
	case errors.Is(err, store.ErrSessionDead):
		return Closed{Groups: []string{}}, nil
	case err != nil:
		return nil, err
	}
	held := s.feed.Held(session.ID)
	err = s.engine.End(r.Context(), session.ID, store.Closed)
	s.audit(r.Context(), "close session", "", 0, err, "")
	return Closed{Groups: held}, err
}
