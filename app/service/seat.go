package service

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/lease"
)

// seat opens the session to lead in, or finds the one that an earlier try of the same
// instance opened. It never takes over the session of another process.
func (s *Service) seat(ctx context.Context, c *contest, ttl time.Duration) error {
	if c.within.session != "" {
		return s.seatWithin(ctx, c)
	}
	if err := s.census.room(ctx, c.candidate.ID, c.opening()); err != nil {
		return err
	}
	session, sent, err := s.open(ctx, c.candidate, c.wish, ttl, c.opening())
	if err == nil {
		c.session, c.sent = session, sent
	}
	return err
}

func (s *Service) seatWithin(ctx context.Context, c *contest) error {
	session, err := s.own(ctx, c.within, c.candidate.ID)
	if err != nil {
		return err
	}
	if !session.Scope.Covers(c.group) {
		return outOfScope(c.group)
	}
	if p := s.admits(c.policy, lease.Attributes{}, c.group, session); p != nil {
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
