package model

import (
	"fmt"
	"slices"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

// requestsKept bounds the requests of one session that wait or were answered
// and may still be asked for.
const requestsKept = 16 * lease.MaxRequests

type request struct {
	lease.Request
	answer lease.Answer
	until  clock.Instant
}

func (r *request) waits() bool { return r.answer.Outcome == "" }

// waiting forgets what has expired and returns what still wants an answer, in
// the order asked.
func (n *session) waiting(now clock.Instant) []lease.Request {
	if len(n.requests) == 0 {
		return nil
	}
	n.forget(now)
	var waiting []lease.Request
	for i := range n.requests {
		if n.requests[i].waits() {
			waiting = append(waiting, n.requests[i].Request)
		}
	}
	return waiting
}

func (n *session) forget(now clock.Instant) {
	n.requests = slices.DeleteFunc(n.requests, func(r request) bool { return r.until <= now })
}

func find(requests []request, id string) *request {
	for i := range requests {
		if requests[i].ID == id {
			return &requests[i]
		}
	}
	return nil
}

// Ask leaves a request for the owner of a living session.
func (s *State) Ask(now clock.Instant, id lease.SessionID, r lease.Request) error {
	s.Expire(now)
	if err := r.Validate(); err != nil {
		return err
	}
	n := s.sessions[id]
	if n == nil {
		return dead(id)
	}
	waiting := len(n.waiting(now))
	if find(n.requests, r.ID) != nil {
		return nil
	}
	if waiting >= lease.MaxRequests || len(n.requests) >= requestsKept {
		return fmt.Errorf("mem: session %q has %d requests waiting: %w", id, waiting, lease.ErrBusy)
	}
	n.requests = append(n.requests, request{Request: r, until: now.Add(r.TTL)})
	s.bump()
	return nil
}

// Answer notes the first answer to a request. Another one changes nothing.
func (s *State) Answer(now clock.Instant, id lease.SessionID, req string, a lease.Answer) error {
	s.Expire(now)
	if err := a.Validate(); err != nil {
		return err
	}
	n := s.sessions[id]
	if n == nil {
		return dead(id)
	}
	n.forget(now)
	r := find(n.requests, req)
	if r == nil {
		return notAsked(id, req)
	}
	if r.waits() {
		r.answer = a
		s.bump()
	}
	return nil
}

// Answered returns the answer until the request expires, also when the session
// has died since. One that a session died without answering is ErrSessionDead.
func (s *State) Answered(now clock.Instant, id lease.SessionID, req string) (lease.Answer, error) {
	s.Expire(now)
	if n := s.sessions[id]; n != nil {
		n.forget(now)
		if r := find(n.requests, req); r != nil {
			return r.answer, nil
		}
		return lease.Answer{}, notAsked(id, req)
	}
	for _, g := range s.graves {
		if g.id != id {
			continue
		}
		if r := find(g.answered, req); r != nil && r.until > now {
			return r.answer, nil
		}
	}
	return lease.Answer{}, dead(id)
}

func notAsked(id lease.SessionID, req string) error {
	return fmt.Errorf("mem: request %q of session %q: %w", req, id, lease.ErrNotFound)
}

// grave keeps what a session answered before it died: an owner that steps down
// and goes has still answered.
type grave struct {
	id       lease.SessionID
	answered []request
}

// gravesKept bounds them; the oldest go first.
const gravesKept = 1024

func (s *State) keepAnswers(now clock.Instant, n *session) {
	n.forget(now)
	answered := slices.DeleteFunc(n.requests, func(r request) bool { return r.waits() })
	n.requests = nil
	if len(answered) == 0 {
		return
	}
	s.graves = slices.DeleteFunc(s.graves, func(g grave) bool {
		return !slices.ContainsFunc(g.answered, func(r request) bool { return r.until > now })
	})
	if len(s.graves) == gravesKept {
		s.graves = slices.Delete(s.graves, 0, 1)
	}
	s.graves = append(s.graves, grave{id: n.ID, answered: answered})
}
