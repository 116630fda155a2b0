package service

import (
	"context"
	"errors"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/app/service/access"
	"github.com/tenurehq/tenure/lease"
)

// standInLine waits for the group to fall vacant and tries in turn, as long as the
// caller waits. It keeps the session alive, unless that is the caller's own to keep.
func (s *Service) standInLine(ctx context.Context, c *contest, ttl time.Duration) (lease.View, error) {
	access.Yield(ctx)
	sub := s.feed.Subscribe(c.group)
	defer sub.Close()
	leave := s.line.enter(c.session, c.group)
	defer func() { leave() }()
	over := time.NewTimer(max(0, c.wait-s.clock.Now().Sub(c.arrived)))
	defer over.Stop()
	beat := time.NewTimer(c.session.TTL / 4)
	defer beat.Stop()
	try := time.NewTimer(time.Hour)
	defer try.Stop()
	try.Stop()
	v := lease.View{Record: lease.Record{Group: c.group}}

	for {
		select {
		case <-sub.Wake():
			views, synced := sub.Take()
			if !synced || len(views) == 0 {
				continue // what cannot be seen is not vacant
			}
			v = views[0]
			s.sessions.seen(v)
			switch {
			case c.leads(v):
				// Somebody handed it over. A feed is no proof.
				if now, err := s.confirm(ctx, c); err == nil {
					return now, nil
				}
			case v.State == tenure.Vacant:
				try.Reset(time.Duration(s.line.place(c.session, c.group)) * s.cfg.Step)
			default:
				try.Stop()
			}
		case <-try.C:
			if v.State == tenure.Led {
				continue
			}
			won, err := s.take(ctx, c, v)
			switch {
			case err == nil:
				return won, nil
			case errors.Is(err, errTaken):
				v = won
			case errors.Is(err, lease.ErrSessionDead) && c.within.session == "":
				if err := s.reseat(ctx, c, ttl, &leave); err != nil {
					return v, err
				}
				try.Reset(0)
			case isProblem(err) || lease.Definite(err):
				return v, err
			default:
				try.Reset(s.cfg.CallTimeout / 4)
			}
		case <-beat.C:
			if err := s.gate.Recheck(c.id, access.Campaign, c.group); err != nil {
				return v, err
			}
			if err := s.stay(ctx, c, ttl, &leave); err != nil {
				return v, err
			}
			beat.Reset(c.session.TTL / 4)
		case <-over.C:
			if a, err := s.reader.Read(ctx, c.group); err == nil {
				v = a.View
			}
			if c.leads(v) {
				return v, s.again(ctx, c)
			}
			return v, s.notElected(c, v)
		case <-ctx.Done():
			return v, context.Cause(ctx)
		case <-s.ctx.Done():
			return v, context.Canceled
		}
	}
}

func isProblem(err error) bool {
	var p *httpapi.Problem
	return errors.As(err, &p)
}

// confirm asks the engine whether the candidate leads.
func (s *Service) confirm(ctx context.Context, c *contest) (lease.View, error) {
	a, err := s.reader.Read(ctx, c.group)
	if err != nil {
		return lease.View{}, err
	}
	if !c.leads(a.View) {
		return lease.View{}, errTaken
	}
	return a.View, s.again(ctx, c)
}

// stay keeps the waiting session alive. A beat that fails is tried again with the next;
// a session that has died is replaced, at the end of the line.
func (s *Service) stay(ctx context.Context, c *contest, ttl time.Duration, leave *func()) error {
	if c.within.session != "" {
		return nil
	}
	_, sent, err := s.keep(ctx, c.session.ID)
	switch {
	case err == nil:
		c.sent = sent
	case errors.Is(err, lease.ErrSessionDead):
		return s.reseat(ctx, c, ttl, leave)
	case lease.Definite(err):
		return err
	}
	return nil
}

func (s *Service) reseat(ctx context.Context, c *contest, ttl time.Duration, leave *func()) error {
	session, sent, err := s.open(ctx, c.candidate, c.wish, ttl, c.opening())
	if err != nil {
		return err
	}
	(*leave)()
	*leave = s.line.enter(session, c.group)
	c.session, c.sent = session, sent
	return nil
}
