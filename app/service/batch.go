package service

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/app/service/access"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

// rally is one session's campaign for many groups.
type rally struct {
	id      access.Identity
	session lease.Session
	wanted  map[string]bool // not led yet, and not refused
	led     map[string]lease.View
	refused map[string]BatchRefuse
	due     map[string]clock.Instant // vacant groups: when it is our turn
}

// batch campaigns for many groups within a session: one keep-alive carries them all,
// and what falls vacant at once is taken in few steps.
func (s *Service) batch(w http.ResponseWriter, r *http.Request) error {
	arrived := s.clock.Now()
	h, err := s.parseHandle(r.PathValue("handle"))
	if err != nil {
		return err
	}
	var in BatchRequest
	if err := s.body(w, r, false, &in); err != nil {
		return err
	}
	if len(in.Groups) == 0 || len(in.Groups) > maxBatch {
		return bad("bad_argument", "groups: from 1 to %d names", maxBatch)
	}
	wait, err := s.waitOf(w, r)
	if err != nil {
		return err
	}
	ctx := r.Context()
	session, err := s.mine(ctx, h)
	if err != nil {
		return err
	}
	b := &rally{
		id: access.From(ctx), session: session,
		wanted: make(map[string]bool), led: make(map[string]lease.View), refused: make(map[string]BatchRefuse), due: make(map[string]clock.Instant),
	}
	beat, sent, err := s.keep(ctx, session.ID)
	if err != nil {
		return err
	}
	if err := s.enlist(ctx, b, in.Groups); err != nil {
		return err
	}
	err = s.rally(ctx, b, time.Duration(max(0, int64(wait-s.clock.Now().Sub(arrived)))), wait > 0)
	s.audit(ctx, "campaign for many", "", 0, err, "")
	if err != nil {
		return err
	}
	httpapi.WriteJSON(w, http.StatusOK, b.answer(beat.TTL, max(0, sent.Sub(arrived))))
	return nil
}

func (b *rally) answer(ttl, held time.Duration) Batch {
	out := Batch{Led: []BatchTerm{}, Refused: []BatchRefuse{}, TTLMS: ttl.Milliseconds(), HeldMS: held.Milliseconds()}
	for g, v := range b.led {
		out.Led = append(out.Led, BatchTerm{Group: g, Term: v.Token})
	}
	for _, no := range b.refused {
		out.Refused = append(out.Refused, no)
	}
	slices.SortFunc(out.Led, func(a, b BatchTerm) int { return compare(a.Group, b.Group) })
	slices.SortFunc(out.Refused, func(a, b BatchRefuse) int { return compare(a.Group, b.Group) })
	return out
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// enlist sorts out the groups that the session may not lead.
func (s *Service) enlist(ctx context.Context, b *rally, groups []string) error {
	for _, g := range groups {
		if err := lease.CheckGroup(g); err != nil {
			return err
		}
		if !b.session.Scope.Covers(g) {
			return outOfScope(g)
		}
		if !s.gate.May(b.id, access.Campaign, g) {
			return denied(access.Campaign, g)
		}
	}
	node := b.session.Candidate.ID
	more := 0
	for _, g := range groups {
		if v, _ := s.feed.View(g); !leads(v, node) {
			more++
		}
	}
	if err := s.room(b.id, node, more); err != nil {
		return err
	}
	for _, g := range groups {
		b.wanted[g] = true
	}
	return s.muster(ctx, b, groups)
}

// muster sorts out the groups that what is laid down keeps the session from leading.
func (s *Service) muster(ctx context.Context, b *rally, groups []string) error {
	attributes, err := s.node(ctx, b.session.Candidate.ID)
	if err != nil {
		return err
	}
	policies, err := s.policies.many(ctx, groups)
	if err != nil {
		return err
	}
	for _, g := range groups {
		p := s.fits(policies[g], attributes, g, b.session)
		if v, _ := s.feed.View(g); p == nil || v.State == tenure.Led && v.Holder == b.session.ID {
			continue // what it leads it leads on
		}
		b.refused[g] = BatchRefuse{Group: g, Code: p.Code}
		delete(b.wanted, g)
		delete(b.due, g)
	}
	return nil
}

// rally tries for what is vacant, and with patience for what falls vacant, until the
// session leads something that it did not ask for in vain.
func (s *Service) rally(ctx context.Context, b *rally, patience time.Duration, wait bool) error {
	groups := make([]string, 0, len(b.wanted))
	for g := range b.wanted {
		groups = append(groups, g)
	}
	if len(groups) == 0 {
		return nil
	}
	sub := s.feed.Subscribe(groups...)
	defer sub.Close()
	defer s.line.enter(b.session, groups...)()
	over := time.NewTimer(max(patience, s.cfg.CallTimeout))
	if wait {
		over.Reset(patience)
	}
	defer over.Stop()
	try := time.NewTimer(0)
	defer try.Stop()
	try.Stop()
	look := time.NewTicker(recheck)
	defer look.Stop()

	for {
		select {
		case <-sub.Wake():
			views, synced := sub.Take()
			if !synced {
				continue
			}
			s.sort(b, views)
			if !wait {
				clear(b.due) // one try, at once, for all that is vacant
				err := s.takeAll(ctx, b, b.vacant(views))
				s.giveUp(b)
				return err
			}
		case <-try.C:
			views := s.turn(b)
			names := make([]string, len(views))
			for i, v := range views {
				names[i] = v.Group
			}
			// What is laid down may have changed while it waited.
			if err := s.muster(ctx, b, names); err != nil {
				return err
			}
			if err := s.takeAll(ctx, b, b.vacant(views)); err != nil {
				return err
			}
		case <-look.C:
			for g := range b.wanted {
				if err := s.gate.Recheck(b.id, access.Campaign, g); err != nil {
					return err
				}
			}
		case <-over.C:
			if !wait {
				return errors.New("service: the engine cannot be watched")
			}
			s.giveUp(b)
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ctx.Done():
			return context.Canceled
		}
		if len(b.led) > 0 && len(b.due) == 0 || len(b.wanted) == 0 {
			s.giveUp(b)
			return nil
		}
		if next, ok := b.next(); ok {
			try.Reset(max(0, next.Sub(s.clock.Now())))
		}
	}
}

// sort takes in what the feed says.
func (s *Service) sort(b *rally, views []lease.View) {
	now := s.clock.Now()
	for _, v := range views {
		switch {
		case !b.wanted[v.Group]:
		case v.State == tenure.Led && v.Holder == b.session.ID:
			b.win(v)
		case v.State == tenure.Led:
			delete(b.due, v.Group)
		default:
			b.due[v.Group] = now.Add(time.Duration(s.line.place(b.session, v.Group)) * s.cfg.Step)
		}
	}
}

func (b *rally) win(v lease.View) {
	b.led[v.Group] = v
	delete(b.wanted, v.Group)
	delete(b.due, v.Group)
}

func (b *rally) vacant(views []lease.View) []lease.View {
	return slices.DeleteFunc(views, func(v lease.View) bool { return !b.wanted[v.Group] || v.State == tenure.Led })
}

func (b *rally) next() (clock.Instant, bool) {
	first := clock.Never
	for _, at := range b.due {
		first = min(first, at)
	}
	return first, first != clock.Never
}

// turn returns the vacant groups that it is our turn to try for.
func (s *Service) turn(b *rally) []lease.View {
	now := s.clock.Now()
	var views []lease.View
	for g, at := range b.due {
		if at > now {
			continue
		}
		delete(b.due, g)
		if v, _ := s.feed.View(g); v.State != tenure.Led {
			views = append(views, v)
		}
	}
	return views
}

// takeAll tries for the groups in as few steps as the engine allows. What another has
// taken is left to it.
func (s *Service) takeAll(ctx context.Context, b *rally, views []lease.View) error {
	for part := range slices.Chunk(views, s.store.Limits().Batch) {
		if err := s.takeSome(ctx, b, part); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) takeSome(ctx context.Context, b *rally, part []lease.View) error {
	for len(part) > 0 {
		seen := make([]lease.Record, len(part))
		for i, v := range part {
			seen[i] = v.Record
		}
		cctx, cancel := s.call(ctx)
		asked := s.clock.Now()
		granted, err := s.store.Acquire(cctx, b.session.ID, seen...)
		cancel()
		s.metrics.engineCall(s.clock.Now().Sub(asked), err)
		var conflict *lease.ConflictError
		switch {
		case err == nil:
			for _, r := range granted {
				b.win(lease.View{Record: r, State: tenure.Led})
			}
			return nil
		case errors.As(err, &conflict) && len(conflict.Current) > 0:
			s.sort(b, conflict.Current)
			part = slices.DeleteFunc(slices.Clone(part), func(v lease.View) bool {
				return slices.ContainsFunc(conflict.Current, func(c lease.View) bool { return c.Group == v.Group })
			})
		case lease.Definite(err) && !isConflict(err):
			return err
		default:
			return s.resolve(ctx, b, part)
		}
	}
	return nil
}

// resolve reads what became of a try whose answer was lost.
func (s *Service) resolve(ctx context.Context, b *rally, part []lease.View) error {
	for _, v := range part {
		a, err := s.reader.Read(ctx, v.Group)
		if err != nil {
			return err
		}
		s.sort(b, []lease.View{a.View})
	}
	return nil
}

// giveUp says who leads what the session does not.
func (s *Service) giveUp(b *rally) {
	for g := range b.wanted {
		no := BatchRefuse{Group: g, Code: "not_leader"}
		if v, _ := s.feed.View(g); v.State == tenure.Led {
			no.LeaderNodeID, no.Term = v.Candidate.ID, v.Token
		}
		b.refused[g] = no
	}
}
