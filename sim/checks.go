package sim

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/store"
)

// These checks go beyond G1 to G8: the machine must be stable, make few calls, and obey
// operators. docs/guarantees.md lists the checks by name.
//
// E1: no term expires while its process can reach the store.
// E2: the calls of a process are bounded. It does not repeat a refused call without end.
// E3: no call names a session that the process knows to be dead.
// E4: a session that is given up is closed.
// E5: the machine uses every grant that it gets an answer for, and leaves none unused.
// E6: the first in line leads next.
// E7: requests and health checks are obeyed: cool-downs are kept, and an unhealthy process does not lead.
// E8: nothing is granted to a node after its cordon was acknowledged.

// checkInterval is the interval of the periodic checks.
const checkInterval = 250 * time.Millisecond

// periodicChecks makes the checks that depend on time.
func (w *world) periodicChecks() {
	for _, n := range w.processes() {
		if n.disturbed() {
			n.quietAt = w.now
		}
		if n.up && !n.paused {
			n.overdue()
		}
		w.checkSession(n)
		w.checkClosed(n)
	}
	if !w.lenient {
		for _, n := range w.nodes {
			for _, t := range n.terms {
				if l := w.store.grants[t.group]; w.store.owner(l.by[l.top]) == n {
					l.usedAt = w.now
				}
			}
		}
		for _, g := range w.groups {
			w.checkVacancy(g)
			w.checkOrphan(g)
			w.checkClients(g)
		}
	}
	w.after(checkInterval, w.periodicChecks)
}

// disturbed reports whether a fault affects the process or its way to the store. A silent
// watch does not count: the machine must notice it.
func (n *node) disturbed() bool {
	r, s := &n.link, n.w.store
	if n.client != nil && slices.ContainsFunc(n.w.instances, func(i *instance) bool { return i.disturbed() }) {
		return true
	}
	return !n.up || n.paused || n.w.cordons[n.candidate.ID] || n.unhealthy || r.cutOut || r.cutIn || r.slowIn > 0 || r.slowOut > 0 || r.lossy > 0 ||
		s.down || s.slow > 0 || s.disk > 0 || s.busyUntil > n.w.now || s.lag > 0 || s.refuseWatches > 0 || n.w.rewound
}

// quietFor is how long the process has been able to reach the store.
func (n *node) quietFor() time.Duration { return time.Duration(n.w.now - n.quietAt) }

// noticeBound bounds a vacancy while a candidate can reach the store. If its watch is
// silent, it notices the vacancy by its keep-alives after a few beats.
func (w *world) noticeBound() time.Duration {
	t := w.timing
	return 7*t.Beat + 2*t.CallTimeout + 2*t.BackoffMax + 5*time.Second
}

// checkVacancy checks G7 during the faults.
func (w *world) checkVacancy(group string) {
	l, bound := w.store.grants[group], w.noticeBound()
	if w.kind == served {
		bound += w.maxWait() // a call may wait this long on a silent watch
	}
	if l.vacantAt == never || w.now < l.vacantAt.add(bound) {
		return
	}
	for _, n := range w.nodes {
		if n.quietFor() > bound && n.wants[group] && w.now > n.wantsAt[group].add(bound) && w.now > n.coolUntil[group].add(bound) {
			w.broken("G7", "group %s has been vacant for %v, though %s wants it and has reached the store for %v", group, time.Duration(w.now-l.vacantAt), n.name, n.quietFor())
			return
		}
	}
}

// checkSession checks G7 for each candidate: it has a session with which it can lead.
func (w *world) checkSession(n *node) {
	bound := w.noticeBound()
	if w.store.alive(n.sess) {
		n.livedAt = w.now
	}
	if w.lenient || n.client != nil || n.serves != nil || w.now < max(n.quietAt, n.livedAt).add(bound) {
		return
	}
	for _, g := range w.groups {
		if n.wants[g] && w.now > n.wantsAt[g].add(bound) {
			w.broken("G7", "%s has wanted group %s for %v and can reach the store, but it has no session", n.name, g, time.Duration(w.now-n.wantsAt[g]))
			return
		}
	}
}

// checkOrphan checks E5: if a process can reach the store and holds a group, it leads the
// group, or its work has not returned.
func (w *world) checkOrphan(group string) {
	l := w.store.grants[group]
	n := w.store.owner(l.by[l.top])
	bound := 2*w.timing.CallTimeout + 4*w.timing.BackoffMin + time.Second
	if len(w.groups) > 20 {
		bound += w.timing.TTL // hundreds of groups share the calls
	}
	var rec stored // the ledger does not have the grants of a rewound engine
	_ = json.Unmarshal(w.store.engine.Get("record/"+group).Value, &rec)
	if rec.Session != l.by[l.top] || l.vacantAt != never || n == nil || n.sess != l.by[l.top] || n.sessOver || !w.store.alive(n.sess) {
		return
	}
	if l.handedOver && n.watchSilent() {
		// It cannot know: it has made no call for the group, and its watch is silent.
		l.usedAt = w.now
	}
	since := max(l.grantedAt, l.usedAt, n.quietAt, n.syncedAt)
	if n.synced && w.now > since.add(bound) {
		w.broken("E5", "%s has held group %s with token %d for %v and neither leads nor releases it", n.name, group, l.top, time.Duration(w.now-since))
	}
}

// watchSilent reports whether the watch of the process is broken and neither side has noticed.
func (n *node) watchSilent() bool {
	return slices.ContainsFunc(n.w.store.streams, func(st *stream) bool { return st.n == n && st.starts == n.starts && st.silent })
}

// checkClosed checks E4.
func (w *world) checkClosed(n *node) {
	for i := range n.gaveUp {
		g := &n.gaveUp[i]
		if n.disturbed() || slices.ContainsFunc(n.terms, func(t *term) bool { return t.session == g.id }) {
			g.since = w.now
		}
		if w.now > g.since.add(2*w.timing.CallTimeout+time.Second) {
			w.broken("E4", "%s gave up session %s %v ago and did not close it", n.name, g.id, time.Duration(w.now-g.since))
		}
	}
}

// gaveUp is a session that its process no longer uses.
type gaveUp struct {
	id    store.SessionID
	since instant
}

// noted keeps what the checks need from the machine's notes.
func (n *node) noted(note *machine.Note) {
	switch note.Kind {
	case machine.NoteSession:
		if note.Session == n.sess {
			n.sessOver = true
		}
		if why := store.Reason(note.Detail); why == store.Expired || why == store.Resigned {
			n.gaveUp = append(n.gaveUp, gaveUp{note.Session, n.w.now})
		}
	case machine.NoteAsked:
		if d, ok := n.w.coolDowns[note.Detail]; ok {
			n.coolUntil[note.Group] = n.w.now.add(d - d/50)
		}
	}
}

// callLimit is the limit of E2: calls of a process in ten seconds. Keep-alives and lists are
// periodic. All other calls follow a change of a group or are retries with backoff.
func (w *world) callLimit() int { return 60 + 12*len(w.groups) }

// checkCall is made before a call is sent.
func (n *node) checkCall(c *machine.Call) {
	w := n.w
	if window := w.now / instant(10*time.Second); window != n.callWindow {
		n.callWindow, n.callCount = window, 0
	}
	n.callCount++
	w.result.Busiest = max(w.result.Busiest, n.callCount*100/w.callLimit())
	if n.callCount > w.callLimit() {
		w.broken("E2", "%s sent %d calls within ten seconds", n.name, n.callCount)
	}
	switch c.Kind {
	case machine.CallClose:
		w.store.closing(c.Session)
		n.gaveUp = slices.DeleteFunc(n.gaveUp, func(g gaveUp) bool { return g.id == c.Session })
	case machine.CallOpen:
	default:
		if c.Session != "" && c.Session == n.deadTold {
			w.broken("E3", "%s sends %s with session %s, which the store had said is dead", n.name, c.Kind, c.Session)
		}
	}
	if c.Kind != machine.CallAcquire {
		return
	}
	for _, seen := range c.Seen {
		if !w.lenient && n.wants[seen.Group] && w.now < n.coolUntil[seen.Group] {
			w.broken("E7", "%s tries for group %s %v before its cool-down is over", n.name, seen.Group, time.Duration(n.coolUntil[seen.Group]-w.now))
		}
	}
	for _, seen := range c.Seen {
		if r := n.refused[seen.Group]; r.version == seen.Version && r.times >= maxRefused {
			w.broken("E2", "%s tries for group %s from version %d again, which was refused %d times", n.name, seen.Group, seen.Version, r.times)
		}
	}
	if len(c.Seen) >= 32 {
		w.count(batched)
	}
}

// refusal counts how often an acquire from a version was refused because the record has
// another one. A late view may bring the old version back once or twice.
type refusal struct {
	version uint64
	times   int
}

const maxRefused = 4

func (n *node) noteRefused(c *machine.Call, conflict *store.ConflictError) {
	for _, seen := range c.Seen {
		for _, v := range conflict.Current {
			if v.Group != seen.Group || v.Version == seen.Version {
				continue
			}
			r := n.refused[seen.Group]
			if r.version != seen.Version {
				r = refusal{version: seen.Version}
			}
			r.times++
			n.refused[seen.Group] = r
		}
	}
}

// heard notes the store's answer before the machine handles it.
func (n *node) heard(e *machine.Event) {
	if e.Kind != machine.OnReply {
		return
	}
	var conflict *store.ConflictError
	switch {
	case e.Reply.Err == nil:
		for _, r := range e.Reply.Records {
			n.confirmed[r.Group] = max(n.confirmed[r.Group], r.Token)
		}
		n.confirmed[e.Reply.View.Group] = max(n.confirmed[e.Reply.View.Group], e.Reply.View.Token)
	case errors.As(e.Reply.Err, &conflict):
		for _, v := range conflict.Current {
			n.confirmed[v.Group] = max(n.confirmed[v.Group], v.Token)
		}
	}
}

// checkReply is made after the machine has handled the answer to a call.
func (n *node) checkReply(c *machine.Call, r *machine.Reply, sent instant, wanted map[string]bool) {
	w := n.w
	timely := w.now < sent.add(w.timing.CallTimeout-w.timing.CallTimeout/20)
	if timely && c.Kind != machine.CallAnswer && errors.Is(r.Err, store.ErrSessionDead) {
		n.deadTold = c.Session
	}
	var conflict *store.ConflictError
	if timely && c.Kind == machine.CallAcquire && errors.As(r.Err, &conflict) {
		n.noteRefused(c, conflict)
	}
	if c.Kind != machine.CallAcquire || r.Err != nil || c.Session != n.sess || n.sessOver || n.unhealthy || n.now() >= n.trust || w.now > sent.add(w.timing.TTL*9/10) || w.lenient {
		return
	}
	for _, rec := range r.Records {
		l := w.store.grants[rec.Group]
		if wanted[rec.Group] && n.begun[rec.Group] < rec.Token && l.top == rec.Token && l.vacantAt == never && n.wants[rec.Group] {
			w.broken("E5", "%s was granted group %s with token %d, and ignores the answer", n.name, rec.Group, rec.Token)
		}
	}
}

// checkUnhealthy checks E7.
func (n *node) checkUnhealthy() {
	if !n.unhealthy || n.paused || !n.up {
		return
	}
	if t := n.anyTerm(); t != nil {
		n.w.broken("E7", "%s goes on leading %s with token %d though it is unhealthy", n.name, t.group, t.token)
	}
}

// checkExpired checks E1. After a fault, one call may still time out, and then the machine
// may pause before it sends a keep-alive that succeeds.
func (n *node) checkExpired(t *term, cause error) {
	tm := n.w.timing
	if errors.Is(cause, tenure.ErrExpired) && !n.w.lenient && !n.paused && n.w.store.grantsTTL == 0 && n.quietFor() > tm.CallTimeout+tm.BackoffMax+500*time.Millisecond {
		n.w.broken("E1", "the term of %s for %s with token %d expired, though it has reached the store for %v", n.name, t.group, t.token, n.quietFor())
	}
}

// checkRefusedSeal checks G1 as Lead does: if a process trusts its session and its token is
// below the sink's mark, the store has lost data.
func (n *node) checkRefusedSeal(t *term, err error) {
	var stale *fence.StaleError
	if errors.As(err, &stale) && n.believes(t) && !t.forced && !n.w.lenient {
		n.w.broken("G1", "%s was granted group %s with token %d, but its sink has seen token %d", n.name, t.group, t.token, stale.Mark.Token)
	}
}
