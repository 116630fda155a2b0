package model

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
)

type session struct {
	lease.Session
	deadline clock.Instant // dead from here on
	due      clock.Instant // its place in the queue: a keep-alive moves the deadline only
	at       int           // in the queue
	attempt  string        // digest, "" if it has none
	holds    []*group
	requests []request
}

// Open begins a session, or renews the living one of the same attempt. Ids count up and
// are never used again.
func (s *State) Open(now clock.Instant, c tenure.Candidate, ttl time.Duration, o lease.OpenOptions) (lease.Session, error) {
	s.Expire(now)
	if err := lease.CheckCandidate(c); err != nil {
		return lease.Session{}, err
	}
	if err := o.Validate(); err != nil {
		return lease.Session{}, err
	}
	if err := lease.CheckTTL(s.limits, ttl); err != nil {
		return lease.Session{}, err
	}
	if s.refuseRewound() {
		return lease.Session{}, lease.ErrRewound
	}
	attempt := o.AttemptDigest(c.ID)
	if n := s.attempts[attempt]; attempt != "" && n != nil {
		if err := n.SameOpening(c, o); err != nil {
			return lease.Session{}, err
		}
		s.extend(now, n)
		return n.Session, nil
	}
	c.Metadata = maps.Clone(c.Metadata)
	s.lastSession++
	n := &session{attempt: attempt, Session: lease.Session{
		ID:         lease.SessionID("s" + strconv.FormatUint(s.lastSession, 10)),
		Candidate:  c,
		Instance:   lease.InstanceDigest(o.Instance),
		Scope:      slices.Clone(o.Scope),
		TTL:        max(ttl, s.limits.MinTTL),
		Fenced:     o.Fenced,
		Deployment: s.deployment,
		Opened:     s.lastSession,
	}}
	s.admit(now, n)
	s.news = append(s.news, lease.Update{Kind: lease.SessionBegan, Session: n.Session})
	s.bump()
	return n.Session, nil
}

// admit gives a session its TTL and its places.
func (s *State) admit(now clock.Instant, n *session) {
	s.extend(now, n)
	n.due = n.deadline
	s.sessions[n.ID] = n
	if n.attempt != "" {
		s.attempts[n.attempt] = n
	}
	heap.Push(&s.queue, n)
	i, _ := slices.BinarySearchFunc(s.line, n, inLine)
	s.line = slices.Insert(s.line, i, n)
}

func (s *State) extend(now clock.Instant, n *session) {
	ttl := n.TTL
	if s.plant.Has(plant.ExpireEarly) {
		ttl /= 2
	}
	n.deadline = max(n.deadline, now.Add(ttl))
}

// KeepAlive extends a living session.
func (s *State) KeepAlive(now clock.Instant, id lease.SessionID, groups ...string) (lease.Beat, error) {
	s.Expire(now)
	n := s.sessions[id]
	if s.plant.Has(plant.KeepAliveRevives) && n == nil {
		n = s.revive(now, id)
	}
	if n == nil {
		return lease.Beat{}, dead(id)
	}
	if s.refuseRewound() && !s.plant.Has(plant.BeatRewound) {
		// What the session held may be gone from the record without its death.
		return lease.Beat{}, lease.ErrRewound
	}
	s.extend(now, n)
	b := lease.Beat{TTL: n.TTL, Requests: n.waiting(now)}
	for _, g := range groups {
		b.Records = append(b.Records, s.viewOf(g).Record)
	}
	return b, nil
}

// Close ends a session. One that is dead or never was is closed already.
func (s *State) Close(now clock.Instant, id lease.SessionID, why lease.Reason) error {
	s.Expire(now)
	if n := s.sessions[id]; n != nil {
		s.bury(n, now, cmp.Or(why, lease.Closed))
	}
	return nil
}

// Expire ends the sessions whose TTL has run out, in the order in which they
// ran out. Every other method begins with it, so that a dead session is never
// seen alive.
func (s *State) Expire(now clock.Instant) {
	for len(s.queue) > 0 && s.queue[0].due <= now {
		n := s.queue[0]
		if n.due < n.deadline {
			s.settle()
			continue
		}
		s.bury(n, n.deadline, lease.Expired)
	}
}

// settle moves the head of the queue to where its deadline belongs.
func (s *State) settle() {
	s.queue[0].due = s.queue[0].deadline
	heap.Fix(&s.queue, 0)
}

// NextExpiry is when the next session dies if no keep-alive comes, Never if
// there is none.
func (s *State) NextExpiry() clock.Instant {
	for len(s.queue) > 0 {
		if n := s.queue[0]; n.due == n.deadline {
			return n.deadline
		}
		s.settle()
	}
	return clock.Never
}

// bury ends a session for good and vacates what it holds.
//
// The present term of each of its groups is closed here and not by the next
// grant, though the record's version stays: an observer learns from the view
// why the leader is gone. Versions guard who holds a record, and to that the
// end of a term that was over anyway adds nothing.
func (s *State) bury(n *session, at clock.Instant, why lease.Reason) {
	delete(s.sessions, n.ID)
	delete(s.attempts, n.attempt)
	heap.Remove(&s.queue, n.at)
	i, _ := slices.BinarySearchFunc(s.line, n, inLine)
	s.line = slices.Delete(s.line, i, i+1)
	end := s.wall(at)
	for _, g := range n.holds {
		g.holder = nil
		g.end(end, why)
		if s.plant.Has(plant.WatchForgetsDeath) && why == lease.Expired {
			continue
		}
		s.touch(g)
	}
	n.holds = nil
	s.news = append(s.news, lease.Update{Kind: lease.SessionEnded, Session: n.Session, Reason: why})
	s.keepAnswers(at, n)
	s.bump()
	if s.plant.Has(plant.KeepAliveRevives) {
		if s.buried == nil {
			s.buried = make(map[lease.SessionID]*session)
		}
		s.buried[n.ID] = n
	}
}

// revive is a planted bug: the session is back, with all that still names it.
func (s *State) revive(now clock.Instant, id lease.SessionID) *session {
	n := s.buried[id]
	if n == nil {
		return nil
	}
	delete(s.buried, id)
	s.admit(now, n)
	s.news = append(s.news, lease.Update{Kind: lease.SessionBegan, Session: n.Session})
	for _, name := range s.sortedNames() {
		if g := s.groups[name]; g.rec.Holder == id {
			s.hold(g, n)
			s.touch(g)
		}
	}
	return n
}

// Restart is what the restart of an engine does to its sessions: each gets its
// whole TTL anew. Nothing else changes.
func (s *State) Restart(now clock.Instant) {
	s.Expire(now)
	for _, n := range s.line {
		s.extend(now, n)
	}
}

// Sessions lists the living sessions in line. If the session named by the page
// has died, where to go on is not known, and the listing is to begin anew.
func (s *State) Sessions(now clock.Instant, scope lease.Scope, p lease.Page) ([]lease.Session, error) {
	s.Expire(now)
	if err := scope.Validate(); err != nil {
		return nil, err
	}
	limit, err := p.Size()
	if err != nil {
		return nil, err
	}
	line := s.line
	if p.After != "" {
		n := s.sessions[lease.SessionID(p.After)]
		if n == nil {
			return nil, &lease.ArgumentError{Field: "page after", Value: p.After, Rule: "no living session: list from the beginning"}
		}
		i, _ := slices.BinarySearchFunc(line, n, inLine)
		line = line[i+1:]
	}
	var page []lease.Session
	for _, n := range line {
		if len(page) == limit {
			break
		}
		if n.Scope.Overlaps(scope) {
			page = append(page, n.Session)
		}
	}
	return page, nil
}

func inLine(a, b *session) int { return lease.InLine(a.Session, b.Session) }

func dead(id lease.SessionID) error {
	return fmt.Errorf("mem: session %q: %w", id, lease.ErrSessionDead)
}

// queue is a heap of sessions by due, the older first.
type queue []*session

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].due != q[j].due {
		return q[i].due < q[j].due
	}
	return q[i].Opened < q[j].Opened
}
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}
func (q *queue) Push(x any) {
	n := x.(*session)
	n.at = len(*q)
	*q = append(*q, n)
}
func (q *queue) Pop() any {
	last := len(*q) - 1
	n := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return n
}
