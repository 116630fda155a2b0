package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure/internal/election"
)

// buildService makes the processes of a served world. Most clocks differ by as much as allowed,
// some processes share an id, and some groups are led only through the service.
func (w *world) buildService() {
	w.cordons = map[string]bool{}
	for i := range 2 {
		n := newNode(w, fmt.Sprintf("i%d", i+1))
		n.serves = &instance{node: n}
		w.instances = append(w.instances, n.serves)
	}
	for i := range w.cfg.Candidates {
		n := newNode(w, fmt.Sprintf("n%d", i+1))
		if i >= 2 {
			n = newNode(w, fmt.Sprintf("c%d", i-1))
			n.client = &client{node: n}
		}
		w.nodes = append(w.nodes, n)
	}
	if w.chance(0.4) {
		n := w.nodes[2+w.rand.IntN(len(w.nodes)-2)]
		n.candidate.ID = w.nodes[w.rand.IntN(len(w.nodes))].candidate.ID
	}
	if w.chance(0.4) {
		for _, n := range w.nodes[:2] {
			n.away[w.groups[0]] = true
		}
	}
	clocks := []*simClock{&w.store.clock}
	for _, n := range w.processes() {
		clocks = append(clocks, &n.clock)
	}
	for _, c := range clocks {
		if bound := int64(w.timing.Drift * million * 0.49); w.chance(0.7) {
			c.ppm = bound
			if w.chance(0.5) {
				c.ppm = -bound
			}
		}
	}
}

// processes returns the candidates and the instances of the service.
func (w *world) processes() []*node {
	if len(w.instances) == 0 {
		return w.nodes
	}
	all := slices.Clone(w.nodes)
	for _, i := range w.instances {
		all = append(all, i.node)
	}
	return all
}

// servedFaults are additional faults in served worlds.
var servedFaults = []fault{
	{"cordon", 12, (*world).cordon},
	{"connection dropped", 20, (*world).drop},
	{"client gone for good", 4, (*world).retire},
}

// instanceFaults are the faults of instances of the service.
var instanceFaults = []fault{
	{"instance crash and restart", 0, (*world).crash},
	{"instance stops in order", 0, (*world).stopInstance},
	{"instance pause, short", 0, func(w *world, n *node) bool { return w.pause(n, 0, w.timing.TTL/2, false) }},
	{"instance pause, long", 0, func(w *world, n *node) bool { return w.pause(n, w.timing.TTL, 3*w.timing.TTL, false) }},
	{"instance cut off from the store", 0, func(w *world, n *node) bool { return w.cut(n, true, true) }},
	{"instance: answers of the store lost", 0, func(w *world, n *node) bool { return w.cut(n, false, true) }},
	{"instance: slow answers, then a cut", 0, (*world).slowThenCut},
	{"instance: slow requests", 0, (*world).slowRequests},
	{"instance: loss", 0, (*world).loss},
	{"instance: watch goes deaf", 0, (*world).silenceWatch},
}

// cordon cordons a node for a while.
func (w *world) cordon(n *node) bool {
	// Not while there is a backup: restoring it would lose the cordon.
	if w.store.down || w.store.backup != nil || w.rewound || w.cordons[n.candidate.ID] || !w.setCordon(n.candidate.ID, "maintenance") {
		return false
	}
	w.cordons[n.candidate.ID] = true
	w.after(w.until(w.between(time.Second, 2*w.timing.TTL)), func() { w.lift(n.candidate.ID) })
	return true
}

func (w *world) lift(id string) {
	if !w.cordons[id] {
		return
	}
	delete(w.cordons, id) // from now on a grant is allowed
	if !w.setCordon(id, "") {
		w.after(100*time.Millisecond, func() {
			w.cordons[id] = true
			w.lift(id)
		})
	}
}

func (w *world) setCordon(id, why string) bool {
	a, err := w.store.admin.Attributes(background, "node/"+id)
	if err != nil {
		return false
	}
	a.Values = map[string]string{"cordon": why}
	_, err = w.store.admin.SetAttributes(background, a)
	return err == nil
}

// drop breaks the connection of a call. The client may notice only at its timeout.
func (w *world) drop(n *node) bool {
	if n.client == nil || len(n.client.open) == 0 {
		return false
	}
	x := n.client.open[w.rand.IntN(len(n.client.open))]
	if x.drop(); w.chance(0.5) {
		x.finish(nil)
	}
	return true
}

// retire ends a client until the faults end.
func (w *world) retire(n *node) bool {
	if n.client == nil {
		return false
	}
	n.crash()
	return true
}

// stopInstance stops an instance gracefully: it ends its calls first.
func (w *world) stopInstance(n *node) bool {
	if n.paused {
		return false
	}
	for _, s := range slices.Clone(n.serves.calls) {
		s.end(errStopping)
	}
	starts := n.starts
	w.after(w.between(0, w.timing.CallTimeout), func() {
		if n.up && n.starts == starts {
			w.crash(n)
		}
	})
	return true
}

// orphaned bounds how long a group can be held after its client has left: a late copy of a call
// waits, wins, and then its session expires.
func (w *world) orphaned() time.Duration { return 2*w.timing.TTL + w.maxWait() + w.expiry() }

// checkClients checks G7 and E5 for clients of the service: if a client's session holds a group,
// the client leads it, or the group falls vacant.
func (w *world) checkClients(group string) {
	l := w.store.grants[group]
	n := w.store.owner(l.holder)
	if n == nil || n.client == nil || l.vacantAt != never {
		return
	}
	stalls := func(i *instance) bool { return i.disturbed() }
	if n.works(group) || slices.ContainsFunc(w.instances, stalls) ||
		w.store.down || w.rewound || n.up && n.disturbed() {
		l.usedAt = w.now
	}
	bound := w.orphaned() + w.noticeBound()
	if since := max(l.usedAt, l.grantedAt); w.now > since.add(bound) {
		w.broken("G7", "group %s has been held by session %s of %s for %v, and nobody leads it", group, l.holder, n.name, time.Duration(w.now-since))
	}
}

// checkLeft checks E4 for the service: a call that ended without leading has closed the session
// that it opened, unless the session leads or another call uses it.
func (w *world) checkLeft(s *serving, out *election.Outcome) {
	id, i := out.Session.ID, s.i
	if s.lent || !w.store.alive(id) || w.store.grants[s.req.groups[0]].holder == id || i.quietFor() < 4*w.timing.CallTimeout {
		return
	}
	for _, o := range w.instances {
		for _, other := range o.calls {
			if other != s && other.req.instance == s.req.instance && other.req.by == s.req.by {
				return
			}
		}
	}
	w.broken("E4", "%s ended a call of %s without a leader, and did not close its session %s", i.name, s.req.by.name, id)
}
