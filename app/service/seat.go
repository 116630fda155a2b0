package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/lease"
)

// seat finds or opens the session to lead in. Who only tries once does not look for a
// session that another instance has opened: there is at most a place in line to keep.
func (s *Service) seat(ctx context.Context, c *contest, ttl time.Duration) error {
	if c.within.session != "" {
		return s.seatWithin(ctx, c)
	}
	at := stand{c.candidate.ID, c.group}
	id := s.sessions.standing(at)
	if c.wait > 0 && id == "" {
		err := s.sessions.each(ctx, lease.Scope{c.group}, func(l lease.Session) bool {
			if l.Candidate.ID == c.candidate.ID && len(l.Scope) == 1 && l.Scope[0] == c.group {
				id = l.ID
			}
			return id == ""
		})
		if err != nil {
			return err
		}
	}
	if known, ok := s.sessions.known(id); ok && s.serves(known, c.candidate, ttl) {
		_, sent, err := s.keep(ctx, id)
		if err == nil {
			c.session, c.sent = known, sent
			s.sessions.stands(at, id)
			return nil
		}
		if !errors.Is(err, lease.ErrSessionDead) {
			return err
		}
	}
	if err := s.census.room(ctx, lease.Scope{c.group}); err != nil {
		return err
	}
	session, sent, err := s.open(ctx, c.candidate, ttl, lease.Scope{c.group})
	if err != nil {
		return err
	}
	s.sessions.stands(at, session.ID)
	c.session, c.sent = session, sent
	return nil
}

// serves reports whether a session is what would be opened now. What it says of its
// candidate and its TTL cannot be changed any more.
func (s *Service) serves(l lease.Session, c tenure.Candidate, ttl time.Duration) bool {
	ttl = max(ttl, s.store.Limits().MinTTL)
	return l.TTL >= ttl && l.TTL < ttl+time.Second && // engines may count in seconds
		l.Candidate.Address == c.Address && l.Candidate.Priority == c.Priority && maps.Equal(l.Candidate.Metadata, c.Metadata)
}

func (s *Service) seatWithin(ctx context.Context, c *contest) error {
	session, err := s.own(ctx, c.within, c.candidate.ID)
	if err != nil {
		return err
	}
	if !session.Scope.Covers(c.group) {
		return outOfScope(c.group)
	}
	if p := s.lasts(c.policy, session.TTL); p != nil {
		return p
	}
	beat, sent, err := s.keep(ctx, session.ID)
	if err != nil {
		return err
	}
	session.TTL = beat.TTL
	c.session, c.sent = session, sent
	return nil
}

func outOfScope(group string) *httpapi.Problem {
	return &httpapi.Problem{
		Status: http.StatusConflict, Code: "out_of_scope",
		Detail: fmt.Sprintf("the session does not stand for group %q: open one that does", group),
	}
}
