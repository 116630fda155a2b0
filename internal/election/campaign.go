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

// OnGone ends a campaign: its client went away, or may not campaign any longer. The Cause of
// the event says why.
const OnGone machine.EventKind = 1 << 7

// Config is what a campaign must know.
type Config struct {
	// Machine is the configuration of the machine. With Lent the session is the client's:
	// it is not closed, whatever happens. Otherwise the campaign has one group.
	Machine machine.Config
	Groups  []string
	// Wait: groups that others lead are waited for. Otherwise the campaign is over when
	// all of them are decided.
	Wait bool
	// Deadline is when it is over in any case.
	Deadline clock.Instant
	// Retriable: the client chose the instance. So a retry, at another instance of the
	// service, may have been told that the session leads.
	Retriable bool
}

// Outcome is what has come of a campaign.
type Outcome struct {
	Led map[string]store.Record
	// Views are the newest views of the other groups that the campaign has seen.
	Views map[string]store.View
	// Failed says which groups the session may not lead, and why.
	Failed map[string]error
	// Unsure are the groups of which nobody can tell yet: a try may still succeed.
	Unsure  map[string]bool
	Session store.Session
	// Sent is when the Open or keep-alive was sent that was acknowledged last.
	Sent clock.Instant
	// Err is why it ended without a leader, or the last failure of the engine. Nil: the
	// groups are led by others.
	Err error

	planted plant.Set
}

// Held is how long a call had waited on the service's clock when the lease began that it is
// answered with. The client adds it to a time of its own clock, which may run slower than the
// service's by the drift, so it is reduced by that.
func (o *Outcome) Held(arrived clock.Instant, drift float64) time.Duration {
	if o.planted.Has(plant.HeldUnreduced) {
		drift = 0
	}
	return time.Duration(float64(max(0, o.Sent.Sub(arrived))) * (1 - drift)).Truncate(time.Millisecond)
}

type phase uint8

const (
	campaigning phase = iota
	settling          // tries under way in a lent session are awaited
	closing           // the session of the campaign is being closed
	renewing          // a campaign that has won renews the session for its client
	done
)

var (
	errTimeout = errors.New("election: no answer in time")
	errBlind   = errors.New("election: the engine cannot be watched")
)

const (
	// tries is how often a group is tried for without an answer, by those who do not wait.
	tries = 3
	// closeTries is how often a close is tried. A session that is not closed expires.
	closeTries = 3
	// own marks the ids of the campaign's own calls.
	own uint64 = 1 << 63
)

// Campaign is one call's campaign. It is for one goroutine.
type Campaign struct {
	cfg     Config
	machine *machine.Machine
	now     clock.Instant
	out     []machine.Action
	begun   bool
	phase   phase
	gone    bool // nobody waits for the answer
	calls   []*call
	nextID  uint64
	closes  int
	refused []string // groups whose tries were refused in this step
	groups  map[string]*group
	outcome Outcome
}

// call is one under way. One without an answer in time is kept: a late answer is true too.
type call struct {
	*machine.Call
	sent clock.Instant
	late bool
}

// group is the campaign's side of one group.
type group struct {
	view     store.View
	known    bool
	flying   int    // tries under way
	unsure   bool   // one from unsureAt got no answer
	unsureAt uint64 // version
	lost     int    // how many got none
}

// New returns a campaign that begins with its first step.
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

// Next is when Step must be called again if nothing happens.
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

// Step takes what has happened by now and returns what to do, in order: calls to be made,
// the watch, and notes. The slice is valid until the next Step.
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

// step lets the machine do what it is time for.
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
			// It was lost before anybody was told of it.
			delete(c.outcome.Led, a.Group)
			c.outcome.Failed[a.Group] = a.Cause
			c.step(machine.Event{Kind: machine.OnReturned, Group: a.Group, Token: a.Token})
		case machine.DoFail:
			c.outcome.Failed[a.Group] = a.Cause
		default:
		}
	}
}

// giveUp closes a session that the machine does not trust any more, unless it leads: a retry
// elsewhere was told so. One that is not closed expires.
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
			c.groups[r.Group].flying++
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

// take takes in one event.
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
	// The machine knows now that its try was refused: what a retry has won is not its own.
	for _, group := range c.refused {
		if c.phase == campaigning {
			c.step(machine.Event{Kind: machine.OnWithdraw, Group: group})
		}
	}
	c.refused = c.refused[:0]
}

// beatsOn is planted: the campaign does not stop when its client owns the session.
func (c *Campaign) beatsOn() bool {
	return c.phase == done && len(c.outcome.Led) > 0 && c.cfg.Machine.Plant.Has(plant.BeatAfterWin)
}

// timeOut treats calls without an answer as calls of unknown outcome.
func (c *Campaign) timeOut() {
	for _, f := range slices.Clone(c.calls) {
		if !f.late && c.now >= f.sent.Add(f.Timeout) {
			c.reply(f, &machine.Reply{ID: f.ID, Err: errTimeout})
			f.late = true
		}
	}
}

// see takes in a view. Versions grow, and a holder dies once.
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

// reply learns from an answer what the machine does not tell, and what is to be known when
// the machine is not asked any more.
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

// heard: an open or a keep-alive was answered.
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
	// A session that leads already is that of an earlier call. The machine would give the
	// group back: it has not seen the term begin.
	leads := out.Session.ID != "" && slices.ContainsFunc(c.cfg.Groups, func(g string) bool { return c.groups[g].view.Holder == out.Session.ID })
	if c.phase == closing || c.phase == campaigning && leads {
		c.close()
	}
}

// acquired: a try was answered.
func (c *Campaign) acquired(f *call, r *machine.Reply, conflict *store.ConflictError) {
	var bar *store.BarError
	for i, seen := range f.Seen {
		g := c.groups[seen.Group]
		if !f.late {
			g.flying--
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

// refuse: the session may not lead the group.
func (c *Campaign) refuse(group string, err error) {
	c.outcome.Failed[group] = err
	c.refused = append(c.refused, group)
}

// decide ends the campaign when there is nothing more to be had.
func (c *Campaign) decide() {
	led, open, wanted := len(c.outcome.Led) > 0, false, false
	for name, g := range c.groups {
		if _, ok := c.outcome.Led[name]; ok || c.outcome.Failed[name] != nil {
			continue
		}
		wanted = true
		ours := g.view.Holder == c.outcome.Session.ID || c.outcome.Session.ID == ""
		enough := g.unsure && g.flying == 0 && (c.cfg.Wait && led || !c.cfg.Wait && g.lost >= tries)
		if !enough && (!g.known || g.flying > 0 || g.unsure || g.view.State == tenure.Vacant || ours) {
			open = true
		}
	}
	if c.now >= c.cfg.Deadline || !wanted || !open && (led || !c.cfg.Wait) {
		c.finish()
	}
}

// finish ends the campaign while its client waits.
func (c *Campaign) finish() {
	switch {
	case c.cfg.Machine.Lent:
		c.phase = settling
	case len(c.outcome.Led) > 0 && c.now.Sub(c.outcome.Sent) >= c.cfg.Machine.Timing.Beat/2:
		// It has waited. Its client must not begin with a lease that is partly over.
		c.phase = renewing
		c.call(&machine.Call{Kind: machine.CallBeat, Session: c.outcome.Session.ID})
	case len(c.outcome.Led) > 0:
		c.phase = done // the client owns the session now
	default:
		c.close()
	}
}

// renewed: the keep-alive before the answer was answered. Without one, the client has what is
// left of the lease.
func (c *Campaign) renewed(err error) {
	if c.phase = done; errors.Is(err, store.ErrSessionDead) {
		for group := range c.outcome.Led {
			c.outcome.Failed[group] = err
		}
		clear(c.outcome.Led)
	}
}

// leave ends the campaign, and nobody waits for its answer.
func (c *Campaign) leave(cause error) {
	if c.gone || c.phase == done && len(c.outcome.Led) == 0 {
		return
	}
	c.gone, c.outcome.Err = true, cause
	switch {
	case c.cfg.Machine.Lent, len(c.outcome.Led) > 0 && c.cfg.Retriable, c.cfg.Machine.Plant.Has(plant.WaiterStays):
		c.phase = done // a retry has the same answer
	case c.phase != closing:
		clear(c.outcome.Led)
		c.close()
	}
}

// close closes the session unless it leads by now: then a retry elsewhere was told so, or
// this client is. The close compares the version that was seen, as a try under way does: so
// one of the two fails. A session that is not closed expires.
func (c *Campaign) close() {
	c.phase = closing
	if slices.ContainsFunc(c.calls, func(f *call) bool { return f.Kind == machine.CallOpen && !f.late }) {
		return // its session is closed when it is known
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
			c.read() // the watch has shown it, which is no proof
			return
		}
		f.Seen = []store.Record{{Group: seen.Group, Version: seen.Version}}
	}
	c.call(f)
}

func (c *Campaign) read() { c.call(&machine.Call{Kind: machine.CallRead, Group: c.cfg.Groups[0]}) }

// closed: the close was answered.
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

// resolve goes on when the session could not be closed and the group was read.
func (c *Campaign) resolve() {
	v := c.groups[c.cfg.Groups[0]].view
	switch leads := v.State == tenure.Led && v.Holder == c.outcome.Session.ID; {
	case leads && !c.gone:
		c.outcome.Led[v.Group], c.outcome.Err = v.Record, nil // a try has succeeded
		c.phase = done
	case leads && c.cfg.Retriable:
		c.phase = done // a retry leads with it
	default:
		c.close()
	}
}

// settled takes in a linearizable view when the machine is not asked any more.
func (c *Campaign) settled(v store.View) {
	if _, wanted := c.groups[v.Group]; wanted && c.phase == settling && v.State == tenure.Led && v.Holder == c.outcome.Session.ID {
		c.outcome.Led[v.Group] = v.Record
	}
}
