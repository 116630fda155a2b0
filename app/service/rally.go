package service

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/app/service/access"
	"github.com/tenurehq/tenure/app/service/feed"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

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
		access.Yield(ctx)
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
			views, err := s.confirmed(ctx, b, views)
			if err != nil {
				return err
			}
			s.sort(b, views)
			if !wait {
				return s.takeAll(ctx, b, b.vacant(views)) // one try, at once
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
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ctx.Done():
			return context.Canceled
		}
		if len(b.led) > 0 && (len(b.due) == 0 || len(b.unsure) > 0) || len(b.wanted) == 0 {
			return nil
		}
		if next, ok := b.next(); ok {
			try.Reset(max(0, next.Sub(s.clock.Now())))
		}
	}
}

// confirmed replaces the views of a feed in which the session leads by what the engine says
// now: a feed may be behind, and a term that has ended must not be reported as led.
func (s *Service) confirmed(ctx context.Context, b *rally, views []lease.View) ([]lease.View, error) {
	var held []string
	others := slices.DeleteFunc(views, func(v lease.View) bool {
		if ours := b.wanted[v.Group] && b.holds(v); ours {
			held = append(held, v.Group)
			return true
		}
		return false
	})
	now, err := s.readAll(ctx, held)
	return append(others, now...), err
}

// readAll reads groups linearizably, a few at a time.
func (s *Service) readAll(ctx context.Context, groups []string) ([]lease.View, error) {
	views := make([]lease.View, len(groups))
	errs := make([]error, policyReads)
	var all sync.WaitGroup
	for k := range min(policyReads, len(groups)) {
		all.Go(func() {
			for i := k; i < len(groups) && errs[k] == nil; i += policyReads {
				var a feed.Answer
				a, errs[k] = s.reader.Read(ctx, groups[i])
				views[i] = a.View
			}
		})
	}
	all.Wait()
	return views, errors.Join(errs...)
}

// sort takes in views; those in which the session leads are the engine's own.
func (s *Service) sort(b *rally, views []lease.View) {
	now := s.clock.Now()
	for _, v := range views {
		if from, unsure := b.unsure[v.Group]; unsure && v.Version > from {
			delete(b.unsure, v.Group) // it has been decided
		}
		b.seen[v.Group] = v
		switch {
		case !b.wanted[v.Group]:
		case b.holds(v):
			b.win(v)
		case v.State == tenure.Led:
			delete(b.due, v.Group)
		default:
			b.due[v.Group] = now.Add(time.Duration(s.line.place(b.session, v.Group)) * s.cfg.Step)
		}
	}
}

// holds reports whether the session leads in a view.
func (b *rally) holds(v lease.View) bool { return v.State == tenure.Led && v.Holder == b.session.ID }

func (b *rally) win(v lease.View) {
	b.led[v.Group] = v
	delete(b.wanted, v.Group)
	delete(b.due, v.Group)
	delete(b.unsure, v.Group)
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
	for part := range slices.Chunk(views, s.store.Caps().Batch) {
		if err := s.takeSome(ctx, b, part); err != nil {
			return err
		}
	}
	return nil
}

// errUnsure: a try got no answer and may still succeed.
var errUnsure = errors.New("service: the outcome of a try for a group is unknown")

// takeSome makes a try for all of part. One that got no answer may still take effect, and
// then the session would hold what nobody knows of: it is made again from the same record,
// which decides both, and what stays undecided is unsure.
func (s *Service) takeSome(ctx context.Context, b *rally, part []lease.View) error {
	for lost := 0; len(part) > 0; {
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
			continue
		case lease.Definite(err) && !isConflict(err):
			return err
		case !lease.Definite(err):
			for _, v := range part {
				b.unsure[v.Group] = max(b.unsure[v.Group], v.Version)
			}
		}
		groups := make([]string, len(part))
		for i, v := range part {
			groups[i] = v.Group
		}
		now, err := s.readAll(ctx, groups)
		if err != nil {
			return err
		}
		s.sort(b, now)
		part = b.vacant(now)
		if lost++; lost == tries {
			for _, v := range part {
				b.due[v.Group] = s.clock.Now().Add(s.cfg.CallTimeout / 4)
			}
			return nil
		}
	}
	return nil
}

// tries is how often a group is tried for when answers are lost.
const tries = 3
