package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/election"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/store"
)

// instance is one instance of the election service: the real campaigns, renewals and
// resignations of internal/election, with a small shell. The process has no machine of its own.
// Each campaign has one.
type instance struct {
	*node
	views  map[string]store.View // from the watch
	synced bool
	calls  []*serving
}

type verb uint8

const (
	doCampaign verb = iota // Group, or Groups with a Session
	doRenew
	doResign
	doOpen
	doKeepAlive
)

func (v verb) String() string {
	return [...]string{"campaign", "renew", "resign", "open", "keep-alive"}[v]
}

// request is a client's request, as docs/api.md describes it.
type request struct {
	verb
	by       *node
	instance string
	chosen   bool // the client chose the instance
	groups   []string
	wait     time.Duration
	session  store.SessionID // the handle
	own      bool            // a campaign opened the session
	term     fence.Token
	to       string
}

// response is the service's answer. ok is a 200.
type response struct {
	ok       bool
	dead     bool // 409: the session or the term has ended
	session  store.SessionID
	led      map[string]fence.Token
	ttl      time.Duration
	held     time.Duration
	requests []store.Request
}

// serving is one call at an instance.
type serving struct {
	i        *instance
	starts   int       // of the instance
	x        *exchange // nil: a copy of a call, without a client that waits
	req      *request
	arrived  clock.Instant
	at       instant
	campaign *election.Campaign
	lent     bool
	watching bool
	seen     []store.View
	gone     bool // the instance has noticed that the client disconnected
	told     bool // the campaign got OnGone
	answered bool
	wakeAt   instant
}

// handlerStore is the store of an instance for one handler. It notes each call in the task, for
// the checks.
type handlerStore struct {
	store.Store
	t *task
}

func (s handlerStore) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	s.t.call = &machine.Call{Kind: machine.CallBeat, Session: id}
	return s.Store.KeepAlive(ctx, id, groups...)
}

func (s handlerStore) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	s.t.call = &machine.Call{Kind: machine.CallRelease, Session: id, To: to, Held: held}
	return s.Store.Release(ctx, id, to, why, held...)
}

func (s handlerStore) End(ctx context.Context, id store.SessionID, why store.Reason, seen ...store.Record) error {
	s.t.call = &machine.Call{Kind: machine.CallClose, Session: id, Seen: seen}
	s.t.n.w.store.closing(id)
	return s.Store.End(ctx, id, why, seen...)
}

// start begins to watch.
func (i *instance) start() {
	i.views, i.synced, i.calls = map[string]store.View{}, false, nil
	i.watch()
}

// step handles the events of the watch.
func (i *instance) step(events []machine.Event) {
	var moved []machine.Event
	for _, e := range events {
		switch {
		case e.Kind == machine.OnWatchLost:
			i.synced = false
			i.soon(i.w.between(50*time.Millisecond, 2*time.Second), i.watch)
		case e.Kind != machine.OnView:
		case e.View.Group == "":
			i.synced = true
		default:
			i.views[e.View.Group] = *e.View
			moved = append(moved, e)
		}
	}
	if !i.synced {
		return
	}
	for _, s := range slices.Clone(i.calls) {
		own := slices.DeleteFunc(slices.Clone(moved), func(e machine.Event) bool {
			return s.watching || !slices.Contains(s.req.groups, e.View.Group)
		})
		if s.campaign != nil && (s.watching || len(own) > 0) {
			s.step(own...)
		}
	}
}

// serve serves a call. A copy gets no answer.
func (i *instance) serve(x *exchange, copied bool) {
	if !i.up {
		if !copied && i.w.chance(0.5) {
			x.c.link.back(func() { x.finish(nil) })
		}
		return
	}
	i.doing(i.starts, func() {
		req := *x.req
		if !req.chosen { // each call counts as a process of its own
			i.w.ids++
			req.instance = fmt.Sprintf("call-%016d", i.w.ids)
		}
		s := &serving{i: i, starts: i.starts, req: &req, arrived: i.now(), at: i.w.now, wakeAt: never}
		if !copied {
			s.x, x.at = x, s
		}
		i.calls = append(i.calls, s)
		s.serve()
	})
}

// work runs a handler's code, then done.
func (s *serving) work(f func(store.Store), done func()) {
	t := &task{by: s.req.by, instance: s.req.instance}
	s.i.run(t, func() { f(handlerStore{s.i.engine, t}) }, done)
}

func (s *serving) candidate() tenure.Candidate { return s.req.by.candidate }

func (s *serving) claim() election.Claim {
	return election.Claim{
		Group: s.req.groups[0], Node: s.candidate().ID, Term: s.req.term, Session: s.req.session, Own: s.req.own, Plant: s.i.w.cfg.Plant,
	}
}

func (s *serving) serve() {
	var r response
	var err error
	var session store.Session
	var sent clock.Instant
	reply := func() {
		var over *election.NotLeaderError
		r.ok, r.dead = err == nil, errors.As(err, &over) || errors.Is(err, store.ErrSessionDead)
		s.reply(&r)
	}
	switch s.req.verb {
	case doCampaign:
		if s.req.session == "" {
			s.contend()
			return
		}
		s.work(func(e store.Store) {
			var beat store.Beat
			if session, err = e.Session(background, s.req.session); err == nil {
				sent = s.i.now()
				beat, err = e.KeepAlive(background, session.ID)
				session.TTL = beat.TTL
			}
		}, func() {
			if err != nil {
				reply()
				return
			}
			s.lent = true
			s.begin(election.Config{Machine: machine.Config{
				Candidate: session.Candidate, Scope: session.Scope, Session: &session, Sent: sent, Lent: true,
			}})
		})
	case doRenew:
		s.work(func(e store.Store) {
			var beat store.Beat
			_, beat, err = election.Renew(background, e, s.claim())
			r.ttl, r.requests = beat.TTL, beat.Requests
		}, func() {
			if err == nil {
				s.i.w.store.renewed(s.req, s.at)
			}
			reply()
		})
	case doResign:
		s.work(func(e store.Store) { _, err = election.Resign(background, e, s.successor, s.claim(), s.req.to) }, reply)
	case doOpen:
		s.work(func(e store.Store) {
			session, err = e.Open(background, s.candidate(), s.i.w.timing.TTL, store.OpenOptions{Scope: s.req.groups, Instance: s.req.instance, Attempt: "session"})
			r.session, r.ttl = session.ID, session.TTL
		}, reply)
	case doKeepAlive:
		s.work(func(e store.Store) {
			var beat store.Beat
			beat, err = e.KeepAlive(background, s.req.session)
			r.ttl, r.requests = beat.TTL, beat.Requests
		}, reply)
	}
}

// successor finds the newest session of a node.
func (s *serving) successor(_ context.Context, node string) (store.Session, error) {
	id, found := s.i.roster.Newest(s.req.groups[0], node, s.req.session)
	if !found {
		return store.Session{}, store.ErrSuccessor
	}
	return store.Session{ID: id, Candidate: tenure.Candidate{ID: node}}, nil
}

// contend campaigns in a session that the call opens.
func (s *serving) contend() {
	var v store.View
	var err error
	ours, group := false, s.req.groups[0]
	s.work(func(e store.Store) {
		if v, err = e.Read(background, group); err != nil || v.State != tenure.Led || v.Candidate.ID != s.candidate().ID {
			return
		}
		var holder store.Session
		holder, err = e.Session(background, v.Holder)
		if errors.Is(err, store.ErrSessionDead) {
			v.State, err = tenure.Vacant, nil // the session died just now
			return
		}
		ours = holder.Instance == store.InstanceDigest(s.req.instance) && slices.Equal(holder.Scope, s.req.groups)
	}, func() {
		if err != nil || !ours && v.State == tenure.Led && s.req.wait == 0 {
			s.reply(&response{})
			return
		}
		s.seen = []store.View{v}
		s.begin(election.Config{Retriable: s.req.chosen, Machine: machine.Config{
			Candidate: s.candidate(), Scope: s.req.groups, Attempt: "campaign " + group,
		}})
	})
}

func (s *serving) begin(cfg election.Config) {
	i := s.i
	if s.gone {
		s.reply(&response{})
		return
	}
	cfg.Groups, cfg.Wait = s.req.groups, s.req.wait > 0
	cfg.Deadline = i.now().Add(2 * i.w.timing.CallTimeout)
	m := &cfg.Machine
	if cfg.Wait {
		cfg.Deadline, m.Line = s.arrived.Add(s.req.wait), i.roster
	}
	m.Timing, m.Caps, m.Seed, m.Plant = machine.Timing(i.w.timing), i.store.Caps(), i.w.rand.Uint64(), i.w.cfg.Plant
	s.campaign = election.New(cfg)
	s.step()
}

// step is the shell of a campaign: it makes the calls, delivers views, and answers.
func (s *serving) step(events ...machine.Event) {
	for {
		for _, a := range slices.Clone(s.campaign.Step(s.i.now(), events...)) {
			switch a.Kind {
			case machine.DoCall:
				s.make(a.Call)
			case machine.DoWatch:
				s.watching = true
			}
		}
		events = nil
		out, done := s.campaign.Done()
		if done && len(out.Led) > 0 && s.gone && !s.told {
			s.told, events = true, []machine.Event{{Kind: election.OnGone, Cause: context.Canceled}}
			continue
		}
		if done && !s.answered {
			s.over(&out)
		}
		if done || !s.watching {
			break
		}
		if s.seen == nil && !s.i.synced {
			break // without a view a group must not count as vacant
		}
		views := s.seen
		for k := 0; s.seen == nil && k < len(s.req.groups); k++ {
			views = append(views, s.i.view(s.req.groups[k]))
		}
		s.watching, s.seen = false, nil
		for k := range views {
			events = append(events, machine.Event{Kind: machine.OnView, View: &views[k]})
		}
		events = append(events, machine.Event{Kind: machine.OnView, View: &store.View{}})
	}
	if s.answered && s.campaign.Next() == clock.Never {
		s.i.forget(s)
	}
	s.i.wake(&s.wakeAt, s.campaign.Next, func() { s.step() })
}

// view is the view of a group from the watch.
func (i *instance) view(group string) store.View {
	if v, known := i.views[group]; known {
		return v
	}
	return store.View{Record: store.Record{Group: group}, State: tenure.Vacant}
}

func (i *instance) forget(s *serving) {
	i.calls = slices.DeleteFunc(i.calls, func(o *serving) bool { return o == s })
}

// make makes a call of the campaign.
func (s *serving) make(c *machine.Call) {
	i, w := s.i, s.i.w
	w.result.Calls++
	if w.trace != nil {
		w.log("%-8s sends %s %s for %s", i.name, c.Kind, c.Session, s.req.by.name)
	}
	switch c.Kind {
	case machine.CallClose:
		w.store.closing(c.Session)
	case machine.CallAcquire:
		for _, seen := range c.Seen {
			w.store.grants[seen.Group].tries++
		}
		if w.chance(0.5) {
			w.atChange(i.node)
		} else {
			w.atChange(s.req.by)
		}
	}
	t := &task{call: c, by: s.req.by, instance: s.req.instance}
	var r *machine.Reply
	i.run(t, func() {
		r = c.Do(background, i.engine, s.candidate(), store.OpenOptions{Scope: s.req.groups, Instance: s.req.instance})
	}, func() {
		if r.Err != nil && w.trace != nil {
			w.log("%-8s is told of %s for %s: %v", i.name, c.Kind, s.req.by.name, r.Err)
		}
		w.store.answered(t, r)
		if s.campaign.Next() != clock.Never {
			s.step(machine.Event{Kind: machine.OnReply, Reply: r})
		}
	})
}

// over answers the client after the campaign has ended.
func (s *serving) over(out *election.Outcome) {
	w := s.i.w
	r := &response{ok: len(out.Led) > 0, session: out.Session.ID, led: map[string]fence.Token{}, ttl: out.Session.TTL, held: out.Held(s.arrived, w.timing.Drift)}
	for g, rec := range out.Led {
		r.led[g] = rec.Token
		if w.store.grants[g].grantedAt < s.at {
			w.count(retryWin)
		}
		if f := w.store.grants[g].wrong[grantKey{rec.Token, rec.Holder}]; f != nil && !f.excused {
			w.broken(f.guarantee, "%s", f.text)
		}
	}
	if !r.ok {
		r.dead = s.lent && errors.Is(out.Failed[s.req.groups[0]], store.ErrSessionDead)
		w.checkLeft(s, out)
	}
	s.reply(r)
}

// reply answers the client, if it is still connected.
func (s *serving) reply(r *response) {
	s.answered = true
	if s.campaign == nil || s.campaign.Next() == clock.Never {
		s.i.forget(s)
	}
	if x := s.x; x != nil && !x.broken && !s.gone {
		s.i.w.log("%-8s answers %s of %s: %v %v %s", s.i.name, s.req.verb, s.req.by.name, r.ok, r.led, r.session)
		x.c.link.back(func() { x.finish(r) })
	}
}

// end ends a campaign whose client has left, or whose instance stops.
func (s *serving) end(cause error) {
	if s.campaign != nil && !s.answered && !s.told {
		s.told = true
		s.i.w.count(callEnded)
		s.step(machine.Event{Kind: election.OnGone, Cause: cause})
	}
}
