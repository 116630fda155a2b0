package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/election"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/httpapi"
)

// campaigner is who campaigns.
type campaigner struct {
	id auth.Identity
	// open opens the session of a campaign. Nil: it is lent.
	open func(context.Context) (lease.Session, error)
}

// refusedError is a problem that says definitely that nothing was done.
type refusedError struct{ *httpapi.Problem }

func (e refusedError) Unwrap() []error { return []error{e.Problem, lease.ErrBusy} }

// timing is that of a session which the service keeps alive for a client that waits.
func (s *Service) timing(ttl time.Duration) lease.Timing {
	ttl = max(ttl, s.store.Caps().MinTTL, 20*time.Millisecond)
	return lease.Timing{
		TTL: ttl, CallTimeout: min(s.cfg.CallTimeout, ttl/4), Step: min(s.cfg.Step, ttl), Margin: min(max(50*time.Millisecond, ttl/40), ttl/4),
	}.Resolve()
}

// run campaigns to the end. seen are views that were read for it; without any, those of the
// feed are awaited.
func (s *Service) run(ctx context.Context, cfg election.Config, who campaigner, seen ...lease.View) election.Outcome {
	cfg.Machine.Caps, cfg.Machine.Seed = s.store.Caps(), uint64(s.clock.Now())
	if cfg.Wait {
		cfg.Machine.Line = &s.sessions.roster
		auth.Yield(ctx)
	}
	r := &running{s: s, ctx: ctx, who: who, campaign: election.New(cfg), groups: cfg.Groups, seen: seen, replies: make(chan *lease.Reply), ended: make(chan struct{})}
	defer r.calls.Wait()
	defer close(r.ended)
	if cfg.Wait || seen == nil {
		r.sub = s.feed.Subscribe(cfg.Groups...)
		r.wake = r.sub.Wake()
		defer r.sub.Close()
	}
	return r.loop()
}

// running is a campaign that a handler steps.
type running struct {
	s        *Service
	ctx      context.Context
	who      campaigner
	campaign *election.Campaign
	groups   []string
	seen     []lease.View
	watching bool // a snapshot is wanted
	sub      *feed.Sub
	wake     <-chan struct{}
	replies  chan *lease.Reply
	ended    chan struct{} // closed: nobody takes replies any more
	calls    sync.WaitGroup
}

func (r *running) loop() election.Outcome {
	s := r.s
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	look := time.NewTicker(recheck)
	defer look.Stop()
	gone, stopping := r.ctx.Done(), s.ctx.Done()
	var events []lease.Event
	for {
		for _, a := range r.campaign.Step(s.clock.Now(), events...) {
			switch a.Kind {
			case lease.DoCall:
				r.make(a.Call)
			case lease.DoWatch:
				r.watching = true
			default:
			}
		}
		events = events[:0]
		if out, done := r.campaign.Done(); done {
			if len(out.Led) == 0 || gone == nil || r.ctx.Err() == nil {
				return out
			}
			events, gone = append(events, left(context.Cause(r.ctx))), nil
			continue
		}
		if events = r.snapshot(events); len(events) > 0 {
			continue
		}
		timer.Reset(max(0, r.campaign.Next().Sub(s.clock.Now())))
		select {
		case reply := <-r.replies:
			events = append(events, lease.Event{Kind: lease.OnReply, Reply: reply})
		case <-r.wake:
			events = r.moved(events)
		case <-timer.C:
		case <-look.C:
			for _, g := range r.groups {
				if err := s.gate.Recheck(r.who.id, auth.Campaign, g); err != nil {
					events = append(events, left(err))
				}
			}
		case <-gone:
			events, gone = append(events, left(context.Cause(r.ctx))), nil
		case <-stopping:
			events, stopping = append(events, left(context.Canceled)), nil
		}
	}
}

func left(cause error) lease.Event { return lease.Event{Kind: election.OnGone, Cause: cause} }

// snapshot shows the groups to a campaign that wants to watch, once the feed sees them.
func (r *running) snapshot(events []lease.Event) []lease.Event {
	if !r.watching {
		return events
	}
	views := r.seen
	for _, g := range r.groups {
		if r.seen != nil {
			break
		}
		v, synced := r.s.feed.View(g)
		if !synced {
			return events // what cannot be seen is not vacant
		}
		views = append(views, v)
	}
	r.watching, r.seen = false, nil
	return append(viewed(events, views), lease.Event{Kind: lease.OnView, View: &lease.View{}})
}

func viewed(events []lease.Event, views []lease.View) []lease.Event {
	for i := range views {
		events = append(events, lease.Event{Kind: lease.OnView, View: &views[i]})
	}
	return events
}

// moved takes what the feed has seen since.
func (r *running) moved(events []lease.Event) []lease.Event {
	views, synced := r.sub.Take()
	if !synced || r.watching {
		return events
	}
	return viewed(events, views)
}

// make makes a call beside the campaign.
func (r *running) make(c *lease.Call) {
	r.calls.Go(func() {
		reply := r.ask(c)
		select {
		case r.replies <- reply:
		case <-r.ended:
		}
	})
}

func (r *running) ask(c *lease.Call) *lease.Reply {
	if c.Kind != lease.CallOpen {
		return c.Do(r.ctx, r.s.engine, tenure.Candidate{}, lease.OpenOptions{})
	}
	reply := &lease.Reply{ID: c.ID}
	var p *httpapi.Problem
	if reply.Session, reply.Err = r.who.open(r.ctx); errors.As(reply.Err, &p) {
		reply.Err = refusedError{p}
	}
	return reply
}
