package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/store"
)

// client is a process that leads over HTTP. It follows docs/api.md in one of three ways: it
// waits in line, polls, or campaigns for all groups with one session.
type client struct {
	*node
	way       way
	chosen    bool // it sends an instance id
	at        int  // the instance of the service that it calls
	open      []*exchange
	busy      map[string]bool // a campaign is running, or was refused just now
	resigning map[string]bool
	spent     map[string]fence.Token // the highest token that it has resigned
	session   store.SessionID        // its own session
	sent      clock.Instant          // when the last keep-alive of the session was sent
	kept      clock.Instant          // until when the session is certainly alive
}

type way uint8

const (
	waits way = iota
	asks
	lends
	ways
)

// exchange is one call of a client.
type exchange struct {
	c      *client
	req    *request
	starts int
	sent   clock.Instant
	at     *serving
	broken bool // the connection is broken
	over   bool
	back   func(*response)
}

// all is the key for all groups in busy: a session has one campaign at a time.
const all = "*"

func (c *client) start() {
	w := c.w
	c.way, c.chosen, c.at = way(w.rand.IntN(int(ways))), w.chance(0.8), w.rand.IntN(len(w.instances))
	c.busy, c.resigning, c.spent, c.open = map[string]bool{}, map[string]bool{}, map[string]fence.Token{}, nil
	c.session = ""
}

// step handles the events of the process.
func (c *client) step(events []machine.Event) {
	for _, e := range events {
		switch e.Kind {
		case machine.OnCampaign:
			c.contest(e.Group)
		case machine.OnWithdraw:
			for _, x := range slices.Clone(c.open) {
				if x.req.verb == doCampaign && x.req.session == "" && x.req.groups[0] == e.Group {
					x.abandon()
					c.busy[e.Group] = false
				}
			}
		}
	}
}

// returned resigns the term after work has returned, unless the term was lost.
func (c *client) returned(t *term) {
	if !errors.Is(t.cause, tenure.ErrLost) {
		c.resign(t.group, t.token, t.session, t.to, 3)
	}
}

// call sends a request. back gets nil if there is no answer in time.
func (c *client) call(req request, limit time.Duration, back func(*response)) *exchange {
	w := c.w
	req.by, req.instance, req.chosen = c.node, c.instance(), c.chosen || req.verb != doCampaign
	x := &exchange{c: c, req: &req, starts: c.starts, sent: c.now(), back: back}
	c.open = append(c.open, x)
	to, copied := w.instances[c.at], false
	if w.trace != nil {
		w.log("%-8s asks %s to %s %v %d %s", c.name, to.name, req.verb, req.groups, req.term, req.session)
	}
	c.link.there(func() {
		to.serve(x, copied)
		copied = true
	}, func(error) { x.finish(nil) })
	if w.faulty && w.chance(0.1) {
		w.count(lateCopy)
		w.after(w.between(time.Millisecond, 2*w.timing.TTL), func() { to.serve(x, true) })
	}
	w.after(limit, func() { x.finish(nil) })
	return x
}

// finish delivers the answer. Without one, the client uses the other instance next.
func (x *exchange) finish(r *response) {
	c := x.c
	c.doing(x.starts, func() {
		if x.over {
			return
		}
		if r == nil {
			x.abandon()
			c.at = (c.at + 1) % len(c.w.instances)
		}
		x.close()
		x.back(r)
	})
}

func (x *exchange) close() {
	x.over = true
	x.c.open = slices.DeleteFunc(x.c.open, func(o *exchange) bool { return o == x })
}

// abandon closes the connection.
func (x *exchange) abandon() {
	x.close()
	x.drop()
}

// drop breaks the connection. The instance notices at once, late or never.
func (x *exchange) drop() {
	x.broken = true
	w := x.c.w
	late := w.between(0, 50*time.Millisecond)
	switch p := w.rand.Float64(); {
	case p < 0.2:
		w.count(dropUnseen)
		return
	case p < 0.5:
		w.count(dropLate)
		late = w.between(0, 2*w.timing.TTL)
	}
	w.after(late, func() {
		if s := x.at; s != nil {
			s.i.doing(s.starts, func() {
				s.gone = true
				s.end(errReset)
			})
		}
	})
}

// crashed ends the connections of a process that has crashed.
func (c *client) crashed() {
	for _, x := range slices.Clone(c.open) {
		x.abandon()
	}
}

// maxWait bounds ?wait=.
func (w *world) maxWait() time.Duration { return 4 * w.timing.TTL }

func (c *client) waiting() time.Duration {
	if c.way == waits || c.way == lends && c.w.chance(0.5) {
		return c.w.between(c.w.timing.TTL, c.w.maxWait())
	}
	return 0
}

// contest campaigns for a group that the process wants.
func (c *client) contest(group string) {
	t := c.w.timing
	key, groups := group, []string{group}
	if c.way == lends {
		if c.session == "" {
			c.openSession()
			return
		}
		key, groups = all, nil
		for _, g := range c.w.groups {
			if c.wants[g] && !c.resigning[g] {
				groups = append(groups, g)
			}
		}
	}
	if c.busy[key] || c.resigning[group] || !c.wants[group] || len(groups) == 0 {
		return
	}
	c.busy[key] = true
	req := request{verb: doCampaign, groups: groups, wait: c.waiting(), session: c.session}
	var x *exchange
	x = c.call(req, req.wait+3*t.CallTimeout, func(r *response) {
		pause := c.w.between(t.TTL/4, 3*t.TTL/8) // retry_after_ms
		if r == nil {
			pause = c.w.between(0, t.BackoffMin)
		}
		if r != nil && r.dead && c.session == req.session {
			c.lost(req.session)
		}
		if r != nil && r.ok {
			for _, g := range groups {
				c.won(x, r, g)
			}
		}
		c.soon(pause, func() {
			c.busy[key] = false
			c.campaigns()
		})
	})
}

// won handles the answer that the client leads the group.
func (c *client) won(x *exchange, r *response, group string) {
	token, led := r.led[group]
	until, holder := c.until(x, r), r.session
	if x.req.session != "" {
		holder = x.req.session // the only one that the client knows
	}
	if holder == c.session {
		until = max(until, c.kept)
	}
	switch {
	case !led || !c.wants[group] || c.now() >= until: // it expires, or the client campaigns again
	case token <= c.spent[group]:
		c.resign(group, token, holder, "", 1) // the client has resigned this term before
	default:
		c.confirmed[group] = max(c.confirmed[group], token)
		if x.req.session != "" {
			c.w.count(lentWin)
		}
		t := c.begin(store.Record{Group: group, Token: token, Holder: holder}, until)
		c.expires(t)
		if x.req.session == "" || c.w.chance(0.5) { // with a session of its own the client need not renew the term
			c.renew(t, x.sent.Add(r.held))
		}
		if c.w.faulty && r.held > c.w.timing.TTL && c.w.chance(0.3) {
			c.w.cut(c.node, true, true) // now only held_ms decides how long it trusts
		}
	}
}

// until is the end of trust that an answer gives.
func (c *client) until(x *exchange, r *response) clock.Instant {
	tm := c.w.timing
	return x.sent.Add(r.held + time.Duration(float64(r.ttl)*(1-tm.Drift)) - tm.Margin - tm.Grace)
}

// expires ends a term when its trust ends.
func (c *client) expires(t *term) {
	c.wake(&t.wakeAt, func() clock.Instant { return t.until }, func() {
		if !t.ended {
			c.checkExpired(t, tenure.ErrExpired)
			c.endHere(t, tenure.ErrExpired)
		}
	})
}

// renew extends a term, a quarter of the TTL after the last renewal.
func (c *client) renew(t *term, last clock.Instant) {
	tm := c.w.timing
	c.soon(max(0, tm.Beat-c.now().Sub(last)), func() {
		if t.ended {
			return
		}
		var x *exchange
		x = c.call(request{verb: doRenew, groups: []string{t.group}, term: t.token, session: t.session}, tm.CallTimeout, func(r *response) {
			switch {
			case t.ended:
			case r == nil, !r.ok && !r.dead:
				c.renew(t, c.now().Add(c.w.between(0, tm.BackoffMin)-tm.Beat))
			case r.dead:
				c.endHere(t, tenure.ErrLost)
			default:
				t.until = max(t.until, c.until(x, r))
				c.asked(r.requests)
				c.renew(t, x.sent)
			}
		})
	})
}

// asked handles operators' requests: the client resigns, and the service hands the group over.
func (c *client) asked(requests []store.Request) {
	for _, r := range requests {
		if t := c.term(r.Group); t != nil {
			c.endHere(t, tenure.ErrResigned)
		}
	}
}

// resign resigns a term after its work has returned. The client makes no other call for the group
// until it has an answer or no tries are left.
func (c *client) resign(group string, token fence.Token, id store.SessionID, to string, tries int) {
	if tries == 0 || c.works(group) {
		return
	}
	c.resigning[group] = true
	c.spent[group] = max(c.spent[group], token)
	req := request{verb: doResign, groups: []string{group}, term: token, session: id, own: c.way != lends, to: to}
	c.call(req, c.w.timing.CallTimeout, func(r *response) {
		c.resigning[group] = false
		if r == nil || !r.ok && !r.dead {
			c.resign(group, token, id, "", tries-1)
		}
		c.contest(group)
	})
}

// openSession opens the session of a client that campaigns for many groups.
func (c *client) openSession() {
	if c.busy[all] {
		return
	}
	c.busy[all] = true
	var x *exchange
	x = c.call(request{verb: doOpen, groups: c.scope}, 2*c.w.timing.CallTimeout, func(r *response) {
		c.busy[all] = false
		if r == nil || !r.ok {
			c.soon(c.w.between(0, c.w.timing.Beat), c.campaigns)
			return
		}
		c.session, c.sent, c.kept = r.session, x.sent, c.until(x, r)
		c.keep()
		c.campaigns()
	})
}

// campaigns continues all campaigns.
func (c *client) campaigns() {
	for _, g := range c.w.groups {
		if c.wants[g] {
			c.contest(g)
		}
	}
}

// keep sends the keep-alives of the session.
func (c *client) keep() {
	tm, id := c.w.timing, c.session
	c.soon(max(0, tm.Beat-c.now().Sub(c.sent)), func() {
		var x *exchange
		x = c.call(request{verb: doKeepAlive, session: id}, tm.CallTimeout, func(r *response) {
			switch {
			case c.session != id:
			case r == nil, !r.ok && !r.dead:
				c.sent = c.now().Add(c.w.between(0, tm.BackoffMin) - tm.Beat)
			case r.dead:
				c.lost(id)
			default:
				c.sent, c.kept = x.sent, max(c.kept, c.until(x, r))
				for _, t := range c.terms {
					if t.session == id && !t.ended {
						t.until = max(t.until, c.kept)
					}
				}
				c.asked(r.requests)
			}
			if c.session == id {
				c.keep()
			}
		})
	})
}

// lost ends all terms of a dead session.
func (c *client) lost(id store.SessionID) {
	c.session = ""
	for _, t := range slices.Clone(c.terms) {
		if t.session == id && !t.ended {
			c.endHere(t, tenure.ErrLost)
		}
	}
	c.campaigns()
}
