package sim

import (
	"maps"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/internal/placement"
	"github.com/tenurehq/tenure/store"
)

// In a world with shards the groups are the shards of a set, and each process also runs the machine
// of internal/placement. The checks are:
//
// E9: no shard has two owners acting: work of a shard begins after the work of a living owner has returned.
// E10: moves are bounded: at most MaxMoves of a process at a time, a shard stays for Settle, and
// processes that disagree move it ever less often.
// E11: a shard is moved only to a candidate that has lived for Settle.
// E12: a process works on at most Max shards.
// E13: when nothing has changed for a while, each shard is where the rules want it.

const set = "s"

// maxMoved is how often one start of a process may move one shard within a run (E10).
const maxMoved = 16

// shardWorld is what the processes of a world with shards have in common.
type shardWorld struct {
	cfg      placement.Config // without what differs between processes
	rules    *placement.Rules // that an operator has stored
	disagree bool             // some processes read other rules
	opened   map[store.SessionID]instant
	full     map[string]store.SessionID
}

// placed is the set of one process.
type placed struct {
	machine *placement.Machine
	cfg     placement.Config
	rules   *placement.Rules
	other   bool          // it reads rules of its own
	works   map[int]*term // work that has not returned
	moved   map[int]int   // how often the shard was moved
	since   map[int]clock.Instant
	ends    bool
}

func (w *world) buildShards() {
	if w.kind != sharded {
		return
	}
	w.cfg.Duration /= 2 // these worlds are slow
	w.groups = nil
	for i := range 4 + w.rand.IntN(7) {
		w.groups = append(w.groups, placement.Group(set, i))
	}
	w.shards = &shardWorld{
		cfg: placement.Config{
			Set: set, Count: len(w.groups), MaxMoves: 1 + w.rand.IntN(3), Settle: w.between(time.Second, 4*time.Second), Plant: w.cfg.Plant,
		},
		rules: &placement.Rules{}, disagree: w.chance(0.3), opened: map[store.SessionID]instant{}, full: map[string]store.SessionID{},
	}
}

// place starts the placement machine of a process.
func (n *node) place() {
	s := n.w.shards
	p := &placed{cfg: s.cfg, rules: s.rules, works: map[int]*term{}, moved: map[int]int{}, since: map[int]clock.Instant{}}
	p.other = s.disagree && n.w.chance(0.5)
	p.cfg.Self, p.cfg.Seed, p.cfg.Rules, p.cfg.Sessions = n.candidate.ID, n.w.rand.Uint64(), p.rules, n.roster.Sessions
	if n == n.w.nodes[len(n.w.nodes)-1] {
		p.cfg.Max = 1 + p.cfg.Count/5
	}
	p.machine = placement.New(p.cfg)
	n.placed = p
	n.roster.SetRank(set, func(group, candidate string) (float64, bool) {
		_, i := placement.Parse(group)
		return p.rules.Rank(set, i, candidate), true
	})
	n.soon(n.w.between(0, 100*time.Millisecond), func() { n.decide(placement.Event{Kind: placement.OnBegin}) })
	n.placeTick(1)
}

func (n *node) placeTick(count int) {
	p := n.placed
	n.soon(p.cfg.Settle/4, func() {
		if n.placed != p || p.ends {
			return
		}
		if count%4 == 0 && !n.link.cutOut && !n.link.cutIn && !n.w.store.down {
			n.readPlaced()
		}
		n.decide(placement.Event{Kind: placement.OnTick})
		n.placeTick(count + 1)
	})
}

// readPlaced reads the rules, or makes some up if this process disagrees.
func (n *node) readPlaced() {
	p, w := n.placed, n.w
	delete(w.shards.full, n.candidate.ID)
	if p.machine.Full() {
		w.shards.full[n.candidate.ID] = n.sess
	}
	p.rules = &placement.Rules{Pins: w.shards.rules.Pins, Weights: w.shards.rules.Weights, Full: maps.Clone(w.shards.full)}
	if p.other && w.faulty {
		p.rules.Pins = map[int]string{}
		for i := range w.groups {
			p.rules.Pins[i] = w.nodes[(i+int(n.name[1]))%3].candidate.ID
		}
	}
	n.decide(placement.Event{Kind: placement.OnRules, Rules: p.rules})
}

// decide is the shell of the placement machine.
func (n *node) decide(e placement.Event) {
	for _, a := range n.placed.machine.Step(n.now(), e) {
		n.doPlaced(a)
	}
	p := n.placed
	if _, moving := p.machine.Owns(); moving > p.cfg.MaxMoves {
		n.w.broken("E10", "%s hands over %d shards at a time, and may %d", n.name, moving, p.cfg.MaxMoves)
	}
	if p.machine.Done() && !p.ends {
		p.ends = true
		n.step(machine.Event{Kind: machine.OnShutdown})
		n.soon(n.w.between(100*time.Millisecond, time.Second), n.crash)
	}
}

func (n *node) doPlaced(a placement.Action) {
	w, p, i, group := n.w, n.placed, a.Shard, n.w.groups[a.Shard]
	t := n.term(group)
	switch a.Kind {
	case placement.DoStand:
		n.wants[group], n.wantsAt[group] = true, w.now
		n.step(machine.Event{Kind: machine.OnCampaign, Group: group})
	case placement.DoWithdraw:
		if n.wants[group] {
			n.withdraw(group)
			n.soon(0, func() { n.decide(placement.Event{Kind: placement.OnFailed, Shard: i}) })
		}
	case placement.DoWork:
		if t == nil {
			t = n.newest(group)
		}
		n.checkWork(i, t)
		p.works[i], p.since[i] = t, n.now()
		n.seal(t)
	case placement.DoEnd:
		if a.To != "" {
			n.checkMove(i, a.To)
		}
		n.returns(p.works[i])
	case placement.DoGive:
		to := a.To
		if t == nil {
			t, to = n.newest(group), ""
		}
		if t != nil {
			t.to = to
			n.giveUp(t)
		}
		n.soon(w.between(time.Millisecond, 10*time.Millisecond), func() {
			n.decide(placement.Event{Kind: placement.OnGiven, Shard: i})
		})
	}
}

// newest is the term of a group, even if it has ended.
func (n *node) newest(group string) *term {
	for _, t := range n.terms {
		if t.group == group {
			return t
		}
	}
	return nil
}

// returns makes work return after a while.
func (n *node) returns(t *term) {
	if t == nil || t.leaving {
		return
	}
	t.leaving = true
	d := n.w.between(0, 100*time.Millisecond)
	if n.hang > 0 {
		d, n.hang = n.hang, 0
	}
	n.soon(d, func() {
		_, i := placement.Parse(t.group)
		delete(n.placed.works, i)
		n.decide(placement.Event{Kind: placement.OnReturned, Shard: i, Early: t.early})
	})
}

// giveUp ends a term, if it has not ended, and releases the group.
func (n *node) giveUp(t *term) {
	if !t.ended {
		cause := tenure.ErrTransferred
		if t.to == "" {
			cause = tenure.ErrResigned
		}
		n.ended(t, cause)
		n.step(machine.Event{Kind: machine.OnEnded, Group: t.group, Token: t.token, Cause: cause})
	}
	n.gone(t)
}

// checkWork checks E9 and E12 when work begins.
func (n *node) checkWork(i int, t *term) {
	w := n.w
	for _, o := range w.nodes {
		if o == n || !o.up || o.placed == nil {
			continue
		}
		if other := o.placed.works[i]; other != nil && !other.forced && !t.forced && !w.lenient && w.store.alive(other.session) && w.store.alive(t.session) {
			w.broken("E9", "%s works on shard %d with token %d while the work of %s with token %d has not returned", n.name, i, t.token, o.name, other.token)
		}
	}
	working := 1
	for _, other := range n.placed.works {
		if !other.leaving {
			working++
		}
	}
	if most := n.placed.cfg.Max; most > 0 && working > most {
		w.broken("E12", "%s works on %d shards, and may on %d", n.name, working, most)
	}
}

// checkMove checks E10 and E11 when the owner of a shard begins to move it.
func (n *node) checkMove(i int, to string) {
	w, p := n.w, n.placed
	w.count(shardMoved)
	p.moved[i]++
	settle := p.cfg.Settle
	if stayed := n.now().Sub(p.since[i]); stayed < settle {
		w.broken("E10", "%s moves shard %d after %v, before it has owned it for %v", n.name, i, stayed, settle)
	}
	if p.moved[i] > maxMoved {
		w.broken("E10", "%s has moved shard %d %d times", n.name, i, p.moved[i])
	}
	for id, at := range w.shards.opened {
		o := w.store.owner(id)
		if o != nil && o.candidate.ID == to && w.now >= at.add(settle-settle/20) {
			return
		}
	}
	w.broken("E11", "%s moves shard %d to %s, which has not lived for %v", n.name, i, to, settle)
}

// movedNow reports whether a shard has been granted or given up just now: it is under way to its owner.
func (w *world) movedNow(group string) bool {
	l := w.store.grants[group]
	return w.kind == sharded && (w.now < l.grantedAt.add(4*time.Second) || l.vacantAt != never && w.now < l.vacantAt.add(time.Second))
}

// checkPlaced checks E13: nothing has changed for long enough.
func (w *world) checkPlaced() {
	if w.kind != sharded || w.lenient {
		return
	}
	for i, g := range w.groups {
		n := w.leader(g)
		best, most := "", -1.0
		for _, o := range w.nodes {
			if number := w.shards.rules.Rank(set, i, o.candidate.ID); number > most && o.placed.cfg.Max == 0 {
				best, most = o.candidate.ID, number
			}
		}
		switch {
		case n == nil || n.placed.moved[i] > 0: // it may come back
		case n.placed.cfg.Max == 0 && n.candidate.ID != best:
			w.broken("E13", "shard %d is owned by %s, and should be by %s", i, n.name, best)
		default:
			w.count(shardPlaced)
		}
	}
}

// shardFaults are the additional faults of worlds with shards.
var shardFaults = []fault{
	{"process leaves its shards", 25, (*world).stopShards},
	{"weights change", 8, (*world).weigh},
	{"pins change", 12, (*world).pin},
}

// notSharded are faults that end terms in ways in which the work of a shard does not, or lose data.
var notSharded = map[string]bool{"store rewound": true, "resign": true, "transfer": true, "withdraw": true}

// stopShards stops a process that hands over its shards, and starts it again later.
func (w *world) stopShards(n *node) bool {
	if n.paused || n.placed.ends {
		return false
	}
	starts := n.starts
	n.decide(placement.Event{Kind: placement.OnStop})
	w.after(w.until(w.between(2*time.Second, 30*time.Second)), func() {
		if n.starts == starts {
			if n.up {
				n.crash() // its work hangs
			}
			n.start()
		}
	})
	return true
}

func (w *world) weigh(*node) bool {
	r := &placement.Rules{Weights: map[string]float64{}, Pins: w.shards.rules.Pins}
	for _, n := range w.nodes {
		r.Weights[n.candidate.ID] = float64(1 + w.rand.IntN(3))
	}
	w.shards.rules = r
	return true
}

// pin pins some shards, one of them to a candidate that does not exist.
func (w *world) pin(*node) bool {
	r := &placement.Rules{Weights: w.shards.rules.Weights, Pins: map[int]string{0: "nobody"}}
	for i := 1; i < len(w.groups); i += 1 + w.rand.IntN(4) {
		r.Pins[i] = w.nodes[w.rand.IntN(len(w.nodes)-1)].candidate.ID
	}
	w.shards.rules = r
	return true
}
