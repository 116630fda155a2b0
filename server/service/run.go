package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/election"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
)

// campaigner is the caller of a campaign.
type campaigner struct {
	id auth.Identity
	// open opens the session of the campaign. Nil: the client lent its own.
	open func(context.Context) (store.Session, error)
}

// refusedError is a problem after which nothing was done for certain.
type refusedError struct{ *httpapi.Problem }

func (e refusedError) Unwrap() []error { return []error{e.Problem, store.ErrBusy} }

// timing is that of a session which the service keeps alive for a client that waits.
func (s *Service) timing(ttl time.Duration) machine.Timing {
	ttl = max(ttl, s.store.Caps().MinTTL, 20*time.Millisecond)
	return machine.Timing(lease.Timing{
		TTL: ttl, CallTimeout: min(s.cfg.CallTimeout, ttl/4), Step: min(s.cfg.Step, ttl), Margin: min(max(50*time.Millisecond, ttl/40), ttl/4),
	}.Resolve())
}

// run runs a campaign to its end. seen are views that were read for it; without any it waits
// for those of the feed.
func (s *Service) run(ctx context.Context, cfg election.Config, who campaigner, seen ...store.View) election.Outcome {
	cfg.Machine.Caps, cfg.Machine.Seed = s.store.Caps(), uint64(s.clock.Now())
	if cfg.Wait {
		cfg.Machine.Line = &s.sessions.Roster
		auth.Yield(ctx)
	}
	r := &running{s: s, ctx: ctx, who: who, campaign: election.New(cfg), groups: cfg.Groups, seen: seen, replies: make(chan *machine.Reply), ended: make(chan struct{})}
	defer r.calls.Wait()
	defer close(r.ended)
	if cfg.Wait || seen == nil {
		r.sub = s.feed.Subscribe(cfg.Groups...)
		r.wake = r.sub.Wake()
		defer r.sub.Close()
	}
	return r.loop()
}

// running is a campaign that runs for a request.
type running struct {
	s        *Service
	ctx      context.Context
	who      campaigner
	campaign *election.Campaign
	groups   []string
	seen     []store.View
	watching bool // the campaign waits for a snapshot
	sub      *feed.Sub
	wake     <-chan struct{}
	replies  chan *machine.Reply
	ended    chan struct{} // closed when nobody takes replies any more
	calls    sync.WaitGroup
}

func (r *running) loop() election.Outcome {
	s := r.s
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	look := time.NewTicker(recheck)
	defer look.Stop()
	gone, stopping := r.ctx.Done(), s.ctx.Done()
	var events []machine.Event
	for {
		for _, a := range r.campaign.Step(s.clock.Now(), events...) {
			switch a.Kind {
			case machine.DoCall:
				r.start(a.Call)
			case machine.DoWatch:
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
			events = append(events, machine.Event{Kind: machine.OnReply, Reply: reply})
		case <-r.wake:
			if views, synced := r.sub.Take(); synced && !r.watching {
				events = viewed(events, views)
			}
		case <-timer.C:
		case <-look.C:
			if err := s.recheck(r.who.id, auth.Campaign, r.groups); err != nil {
				events = append(events, left(err))
			}
		case <-gone:
			events, gone = append(events, left(context.Cause(r.ctx))), nil
		case <-stopping:
			events, stopping = append(events, left(context.Canceled)), nil
		}
	}
}

func left(cause error) machine.Event { return machine.Event{Kind: election.OnGone, Cause: cause} }

// snapshot shows the groups to a campaign that waits for a snapshot, once the feed has them.
// A group that cannot be seen is not vacant.
func (r *running) snapshot(events []machine.Event) []machine.Event {
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
			return events
		}
		views = append(views, v)
	}
	r.watching, r.seen = false, nil
	return append(viewed(events, views), machine.Event{Kind: machine.OnView, View: &store.View{}})
}

func viewed(events []machine.Event, views []store.View) []machine.Event {
	for i := range views {
		events = append(events, machine.Event{Kind: machine.OnView, View: &views[i]})
	}
	return events
}

// start makes a call in a goroutine of its own.
func (r *running) start(c *machine.Call) {
	r.calls.Go(func() {
		reply := &machine.Reply{ID: c.ID}
		if c.Kind != machine.CallOpen {
			reply = c.Do(r.ctx, r.s.engine, tenure.Candidate{}, store.OpenOptions{})
		} else {
			var p *httpapi.Problem
			if reply.Session, reply.Err = r.who.open(r.ctx); errors.As(reply.Err, &p) {
				reply.Err = refusedError{p}
			}
		}
		select {
		case r.replies <- reply:
		case <-r.ended:
		}
	})
}
