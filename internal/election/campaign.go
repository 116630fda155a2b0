package election

import (
	"errors"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// OnGone is the event that the client has disconnected, or may not campaign any more. It ends
// the campaign. Its Cause says why.
const OnGone machine.EventKind = 1 << 7

// Config configures a campaign.
type Config struct {
	// Machine is the configuration of the machine. With Lent the session belongs to the
	// client, and the campaign never closes it. Otherwise the campaign has one group.
	Machine machine.Config
	Groups  []string
	// Wait: the campaign waits for groups that others lead. Otherwise it ends when each
	// group is won or led by another.
	Wait bool
	// Deadline is when the campaign ends in any case.
	Deadline clock.Instant
	// Retriable: the client chose the instance. So a retry at another instance of the
	// service may have got the answer that the session leads.
	Retriable bool
}

// Outcome is the result of a campaign.
type Outcome struct {
	Led map[string]store.Record
	// Views are the newest views of the other groups that the campaign has seen.
	Views map[string]store.View
	// Failed says which groups the session may not lead, and why.
	Failed map[string]error
	// Unsure are the groups with an acquire that may still succeed.
	Unsure  map[string]bool
	Session store.Session
	// Sent is when the last acknowledged Open or keep-alive was sent.
	Sent clock.Instant
	// Err is why the campaign won nothing, or the last failure of the engine. Nil: others
	// lead the groups.
	Err error

	planted plant.Set
}

// Held is the time from the arrival of the call until the start of the lease that it is answered
// with, less the drift. The client adds it to a time of its own clock, which may be slower than
// the service's clock by the drift.
func (o *Outcome) Held(arrived clock.Instant, drift float64) time.Duration {
	if o.planted.Has(plant.HeldUnreduced) {
		drift = 0
	}
	return time.Duration(float64(max(0, o.Sent.Sub(arrived))) * (1 - drift)).Truncate(time.Millisecond)
}

type phase uint8

const (
	campaigning phase = iota
	settling          // it waits for acquires in flight, in a lent session
	closing           // it closes its session
	renewing          // it has won, and renews the session for its client
	done
)

var (
	errTimeout = errors.New("election: no answer in time")
	errBlind   = errors.New("election: the engine cannot be watched")
)

const (
	// tries bounds the acquires without an answer of a campaign that does not wait.
	tries = 3
	// closeTries bounds the tries to close the session. If all fail, the session expires.
	closeTries = 3
	// own marks the ids of the campaign's own calls.
	own uint64 = 1 << 63
)

// Campaign is the campaign of one call. It is not safe for concurrent use.
type Campaign struct {
	cfg     Config
	machine *machine.Machine
	now     clock.Instant
	out     []machine.Action
	begun   bool
	phase   phase
	gone    bool // the client has disconnected
	calls   []*call
	nextID  uint64
	closes  int
	refused []string // groups whose acquires were refused in this step
	groups  map[string]*group
	outcome Outcome
}

// call is a call in flight. After a timeout it is kept, because a late answer is true too.
type call struct {
	*machine.Call
	sent clock.Instant
	late bool
}

// group is what the campaign knows about one group.
type group struct {
	view     store.View
	known    bool
	inFlight int  // acquires in flight
	unsure   bool // an acquire from version unsureAt got no answer
	unsureAt uint64
	lost     int // number of acquires without an answer
}

// New returns a campaign. It begins with the first Step.
func New(cfg Config) *Campaign {
	c := &Campaign{cfg: cfg, machine: machine.New(cfg.Machine), groups: map[string]*group{}}
	c.outcome.Led, c.outcome.Failed = map[string]store.Record{}, map[string]error{}
	for _, g := range cfg.Groups {
		c.groups[g] = &group{view: store.View{Record: store.Record{Group: g}, State: tenure.Vacant}}
	}
	if s := cfg.Machine.Session; s != nil {
		c.outcome.Session, c.outcome.Sent = *s, cfg.Machine.Sent
	}
	return c
}

// Done returns the outcome once there is nothing left to do.
func (c *Campaign) Done() (Outcome, bool) {
	if c.phase != done {
		return Outcome{}, false
	}
	out := c.outcome
	out.planted = c.cfg.Machine.Plant
	out.Views, out.Unsure = map[string]store.View{}, map[string]bool{}
	for name, g := range c.groups {
		if _, led := out.Led[name]; led {
			continue
		}
		out.Views[name] = g.view
		if g.unsure {
			out.Unsure[name] = true
		}
		if !g.known && out.Err == nil && out.Failed[name] == nil {
			out.Err = errBlind
		}
	}
	return out, true
}

// Next is when the caller must call Step if there is no event before.
func (c *Campaign) Next() clock.Instant {
	next := clock.Never
	switch {
	case c.beatsOn():
		next = c.machine.Next()
	case c.phase == done:
	case c.phase == campaigning:
		next = min(c.machine.Next(), c.cfg.Deadline)
		fallthrough
	default:
		for _, f := range c.calls {
			if !f.late {
				next = min(next, f.sent.Add(f.Timeout))
			}
		}
	}
	return next
}

// Step takes what has happened by now and returns what to do, in order: calls, the watch,
// and notes. The slice is valid until the next Step.
func (c *Campaign) Step(now clock.Instant, events ...machine.Event) []machine.Action {
	c.out = c.out[:0]
	c.now = max(c.now, now)
	if !c.begun {
		c.begun = true
		for _, g := range c.cfg.Groups {
			c.step(machine.Event{Kind: machine.OnCampaign, Group: g})
		}
	}
	for i := range events {
		c.take(&events[i])
	}
	if c.phase == campaigning || c.beatsOn() {
		c.step()
	}
	c.timeOut()
	if c.phase == campaigning {
		c.decide()
	}
	if c.phase == settling && !slices.ContainsFunc(c.calls, func(f *call) bool { return !f.late && f.Kind != machine.CallBeat }) {
		c.phase = done
	}
	return c.out
}

// step steps the machine and handles its actions.
func (c *Campaign) step(events ...machine.Event) {
	actions := slices.Clone(c.machine.Step(c.now, events...))
	for i := range actions {
		a := &actions[i]
		switch a.Kind {
		case machine.DoCall:
			if a.Call.Kind == machine.CallClose && c.cfg.Retriable {
				c.giveUp(a.Call)
			} else {
				c.send(a.Call)
			}
		case machine.DoWatch, machine.DoNote:
			c.out = append(c.out, *a)
		case machine.DoBegin:
			c.outcome.Led[a.Group] = a.Record
		case machine.DoEnd:
			// The term ended before the client was answered.
			delete(c.outcome.Led, a.Group)
			c.outcome.Failed[a.Group] = a.Cause
			c.step(machine.Event{Kind: machine.OnReturned, Group: a.Group, Token: a.Token})
		case machine.DoFail:
			c.outcome.Failed[a.Group] = a.Cause
		default:
		}
	}
}

// giveUp closes a session that the machine no longer trusts, unless the session leads: then a
// retry at another instance may have got that answer. If the close fails, the session expires.
func (c *Campaign) giveUp(f *machine.Call) {
	seen := c.groups[c.cfg.Groups[0]].view.Record
	if seen.Holder == f.Session {
		c.step(machine.Event{Kind: machine.OnReply, Reply: &machine.Reply{ID: f.ID}})
		return
	}
	f.Seen = []store.Record{{Group: seen.Group, Version: seen.Version}}
	c.send(f)
}

func (c *Campaign) send(f *machine.Call) {
	c.calls = append(c.calls, &call{Call: f, sent: c.now})
	if f.Kind == machine.CallAcquire {
		for _, r := range f.Seen {
			c.groups[r.Group].inFlight++
		}
	}
	c.out = append(c.out, machine.Action{Kind: machine.DoCall, Call: f})
}

// call makes a call of the campaign's own.
func (c *Campaign) call(f *machine.Call) {
	c.nextID++
	f.ID, f.Timeout = own|c.nextID, c.cfg.Machine.Timing.CallTimeout
	c.send(f)
}

// take handles one event.
func (c *Campaign) take(e *machine.Event) {
	switch {
	case e.Kind == OnGone:
		c.leave(e.Cause)
		return
	case e.Kind == machine.OnView && e.View.Group != "":
		c.see(*e.View)
	case e.Kind == machine.OnReply:
		if i := slices.IndexFunc(c.calls, func(f *call) bool { return f.ID == e.Reply.ID }); i >= 0 {
			f := c.calls[i]
			c.calls = slices.Delete(c.calls, i, i+1)
			c.reply(f, e.Reply)
		}
		if e.Reply.ID >= own {
			return
		}
	}
	if c.phase == campaigning || c.beatsOn() {
		c.step(*e)
	}
	// The machine has seen the refusal. Withdraw, so that it does not take a group that a retry
	// has won.
	for _, group := range c.refused {
		if c.phase == campaigning {
			c.step(machine.Event{Kind: machine.OnWithdraw, Group: group})
		}
	}
	c.refused = c.refused[:0]
}

// beatsOn is a planted bug: the campaign goes on when its client owns the session.
func (c *Campaign) beatsOn() bool {
	return c.phase == done && len(c.outcome.Led) > 0 && c.cfg.Machine.Plant.Has(plant.BeatAfterWin)
}

// timeOut gives calls without an answer an unknown outcome.
func (c *Campaign) timeOut() {
	for _, f := range slices.Clone(c.calls) {
		if !f.late && c.now >= f.sent.Add(f.Timeout) {
			c.reply(f, &machine.Reply{ID: f.ID, Err: errTimeout})
			f.late = true
		}
	}
}

// see applies a view. Versions grow, and a holder dies once.
func (c *Campaign) see(v store.View) {
	g := c.groups[v.Group]
	if g == nil {
		return
	}
	if !g.known || v.Version > g.view.Version || v.Version == g.view.Version && v.State == tenure.Vacant {
		g.view, g.known = v, true
	}
	if v.Version > g.unsureAt {
		g.unsure = false
	}
}

// reply handles an answer: what the machine does not report, and everything after the machine
// has stopped.
func (c *Campaign) reply(f *call, r *machine.Reply) {
	var conflict *store.ConflictError
	if errors.As(r.Err, &conflict) {
		for _, v := range conflict.Current {
			c.see(v)
		}
	}
	if !f.late && c.phase < closing {
		c.outcome.Err = nil
		if r.Err != nil && !store.Definite(r.Err) {
			c.outcome.Err = r.Err
		}
	}
	switch f.Kind {
	case machine.CallOpen, machine.CallBeat:
		c.heard(f, r)
		if c.phase == renewing && f.ID >= own && !f.late {
			c.renewed(r.Err)
		}
	case machine.CallAcquire:
		c.acquired(f, r, conflict)
	case machine.CallRead:
		if r.Err == nil {
			c.see(r.View)
			c.settled(r.View)
		}
		if f.ID >= own && !f.late {
			c.resolve()
		}
	case machine.CallClose:
		if f.ID >= own && !f.late {
			c.closed(r.Err, conflict)
		}
	default:
	}
}

// heard handles the answer to an open or a keep-alive.
func (c *Campaign) heard(f *call, r *machine.Reply) {
	out := &c.outcome
	switch {
	case r.Err == nil && f.Kind == machine.CallOpen:
		out.Session, out.Sent = r.Session, f.sent
	case r.Err == nil && f.Session == out.Session.ID:
		out.Session.TTL, out.Sent = r.Beat.TTL, max(out.Sent, f.sent)
	case r.Err != nil && f.Kind == machine.CallOpen && c.phase == campaigning && store.Definite(r.Err):
		c.finish()
		out.Err = r.Err
	}
	if f.Kind != machine.CallOpen || f.late && c.phase == closing {
		return
	}
	// A session that already leads is from an earlier call. The machine would release the
	// group, because it has not seen the term begin.
	leads := out.Session.ID != "" && slices.ContainsFunc(c.cfg.Groups, func(g string) bool { return c.groups[g].view.Holder == out.Session.ID })
	if c.phase == closing || c.phase == campaigning && leads {
		c.close()
	}
}

// acquired handles the answer to an acquire.
func (c *Campaign) acquired(f *call, r *machine.Reply, conflict *store.ConflictError) {
	var bar *store.BarError
	for i, seen := range f.Seen {
		g := c.groups[seen.Group]
		if !f.late {
			g.inFlight--
		}
		switch {
		case r.Err == nil && i < len(r.Records):
			v := store.View{Record: r.Records[i], State: tenure.Led}
			c.see(v)
			c.settled(v)
		case errors.As(r.Err, &bar):
			if no := bar.For(seen.Group); no != nil {
				c.refuse(seen.Group, no)
			}
		case r.Err == nil || !store.Definite(r.Err):
			if g.lost++; g.view.Version == seen.Version {
				g.unsure, g.unsureAt = true, seen.Version
			}
		case conflict == nil && !errors.Is(r.Err, store.ErrSessionDead):
			c.refuse(seen.Group, r.Err)
		}
	}
}

// refuse notes that the session may not lead the group.
func (c *Campaign) refuse(group string, err error) {
	c.outcome.Failed[group] = err
	c.refused = append(c.refused, group)
}

// decide ends the campaign if it can win nothing more.
func (c *Campaign) decide() {
	led, open, wanted := len(c.outcome.Led) > 0, false, false
	for name, g := range c.groups {
		if _, ok := c.outcome.Led[name]; ok || c.outcome.Failed[name] != nil {
			continue
		}
		wanted = true
		ours := g.view.Holder == c.outcome.Session.ID || c.outcome.Session.ID == ""
		enough := g.unsure && g.inFlight == 0 && (c.cfg.Wait && led || !c.cfg.Wait && g.lost >= tries)
		if !enough && (!g.known || g.inFlight > 0 || g.unsure || g.view.State == tenure.Vacant || ours) {
			open = true
		}
	}
	if c.now >= c.cfg.Deadline || !wanted || !open && (led || !c.cfg.Wait) {
		c.finish()
	}
}

// finish ends the campaign. Its client waits for the answer.
func (c *Campaign) finish() {
	switch {
	case c.cfg.Machine.Lent:
		c.phase = settling
	case len(c.outcome.Led) > 0 && c.now.Sub(c.outcome.Sent) >= c.cfg.Machine.Timing.Beat/2:
		// A part of the lease has passed. Renew it before the client gets it.
		c.phase = renewing
		c.call(&machine.Call{Kind: machine.CallBeat, Session: c.outcome.Session.ID})
	case len(c.outcome.Led) > 0:
		c.phase = done // the client owns the session now
	default:
		c.close()
	}
}

// renewed handles the answer to this keep-alive. If it failed, the client gets what is left of the
// lease.
func (c *Campaign) renewed(err error) {
	if c.phase = done; errors.Is(err, store.ErrSessionDead) {
		for group := range c.outcome.Led {
			c.outcome.Failed[group] = err
		}
		clear(c.outcome.Led)
	}
}

// leave ends the campaign after its client has disconnected.
func (c *Campaign) leave(cause error) {
	if c.gone || c.phase == done && len(c.outcome.Led) == 0 {
		return
	}
	c.gone, c.outcome.Err = true, cause
	switch {
	case c.cfg.Machine.Lent, len(c.outcome.Led) > 0 && c.cfg.Retriable, c.cfg.Machine.Plant.Has(plant.WaiterStays):
		c.phase = done // a retry gets the same answer
	case c.phase != closing:
		clear(c.outcome.Led)
		c.close()
	}
}

// close closes the session, unless it leads by now: then a retry elsewhere has got that answer,
// or this client gets it. The close and an acquire in flight compare the same version of the
// record, so one of them fails. If the session cannot be closed, it expires.
func (c *Campaign) close() {
	c.phase = closing
	if slices.ContainsFunc(c.calls, func(f *call) bool { return f.Kind == machine.CallOpen && !f.late }) {
		return // heard closes its session
	}
	if c.outcome.Session.ID == "" || c.closes == closeTries {
		c.phase = done
		return
	}
	c.closes++
	f := &machine.Call{Kind: machine.CallClose, Session: c.outcome.Session.ID, Reason: store.Closed}
	if (c.cfg.Retriable || !c.gone) && !c.cfg.Machine.Plant.Has(plant.CloseOnDrop) {
		seen := c.groups[c.cfg.Groups[0]].view.Record
		if seen.Holder == c.outcome.Session.ID {
			c.read() // it may be out of date
			return
		}
		f.Seen = []store.Record{{Group: seen.Group, Version: seen.Version}}
	}
	c.call(f)
}

func (c *Campaign) read() { c.call(&machine.Call{Kind: machine.CallRead, Group: c.cfg.Groups[0]}) }

// closed handles the answer to the close.
func (c *Campaign) closed(err error, conflict *store.ConflictError) {
	switch {
	case err == nil:
		c.phase = done
	case conflict != nil && len(conflict.Current) > 0:
		c.resolve()
	default:
		c.read()
	}
}

// resolve continues after the session could not be closed and the group was read.
func (c *Campaign) resolve() {
	v := c.groups[c.cfg.Groups[0]].view
	switch leads := v.State == tenure.Led && v.Holder == c.outcome.Session.ID; {
	case leads && !c.gone:
		c.outcome.Led[v.Group], c.outcome.Err = v.Record, nil // an acquire has succeeded
		c.phase = done
	case leads && c.cfg.Retriable:
		c.phase = done // a retry uses the session
	default:
		c.close()
	}
}

// settled handles a linearizable view after the machine has stopped.
func (c *Campaign) settled(v store.View) {
	if _, wanted := c.groups[v.Group]; wanted && c.phase == settling && v.State == tenure.Led && v.Holder == c.outcome.Session.ID {
		c.outcome.Led[v.Group] = v.Record
	}
}
