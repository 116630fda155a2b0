package experiment

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/reference/api"
)

// The aims of a storm's faults.
const (
	aimLeader   = "leader"
	aimAnywhere = "anywhere"
	aimChange   = "change" // the moment at which another comes to lead
)

// plannedFault is one fault of a plan. Whom it hits is a role: who has it is seen when it
// is injected.
type plannedFault struct {
	Kind string `json:"kind"`
	Aim  string `json:"aim"`
	// Sealed: it stands for at least Spec.For and until a successor has sealed the ledger.
	Sealed bool `json:"sealed,omitempty"`
	chaos.Spec

	step int // in which it is set
}

func (b plannedFault) String() string {
	s := b.Kind
	if b.For > 0 {
		s += fmt.Sprintf(" for %v", b.For)
	}
	if b.Sealed {
		s += " and until a successor has sealed"
	}
	if b.Trigger != "" {
		s += " at a " + b.Trigger
	}
	return s
}

// step is one fault, or two: the second at once with the first, or Delay after the first
// is over, while the fleet recovers from it.
type step struct {
	// Calm is how long the fleet is left alone before, once somebody leads.
	Calm   time.Duration  `json:"calm"`
	Faults []plannedFault `json:"faults"`
	After  bool           `json:"after,omitempty"`
	Delay  time.Duration  `json:"delay,omitempty"`
}

func (s step) String() string {
	if len(s.Faults) == 1 {
		return s.Faults[0].String()
	}
	how := ", together with "
	if s.After {
		how = fmt.Sprintf(", and %v after it ", s.Delay)
	}
	return s.Faults[0].String() + how + s.Faults[1].String()
}

// stormKind is a kind of fault of the storm: a row of chaos.Kinds with its options, how
// often it is dealt, and how the rest is drawn.
type stormKind struct {
	kind, aim string
	weight    int
	spec      chaos.Spec
	draw      func(*planner, *plannedFault)
	// pauses: a node stands still. Two such at once could be the same node, and the end
	// of one pause would end the other.
	pauses bool
	// alone: it is no part of a pair.
	alone bool
}

// class is what it does to the guarantees of the node that it hits.
func (c stormKind) class() string {
	kind, _ := chaos.KindOf(c.spec.Kind)
	switch {
	case c.kind == churnKind:
		return history.ClassKill
	case !kind.Named:
		return kind.Class
	case c.spec.Targets[0] == chaos.Quorum:
		return history.ClassQuorum
	case c.spec.Targets[0] == chaos.Follower:
		return c.spec.Kind // kill or pause
	}
	return ""
}

// classOf is the class of a kind by its name.
func classOf(kind string) string {
	for _, c := range append(stormKinds(etcdEngine), stormKinds(raftEngine)...) {
		if c.kind == kind {
			return c.class()
		}
	}
	return ""
}

// churnKind is one leader killed after the other.
const churnKind = "churn"

// planner deals faults by a seed. Each aim has its deck, which is shuffled and dealt to
// its end before it is shuffled again: so every kind comes, and comes again.
type planner struct {
	rng *rand.Rand
	ttl time.Duration
	// silence is how long belief lasts at most without a quorum.
	silence time.Duration
	decks   map[string][]stormKind
	left    map[string][]stormKind
	aims    []string
}

// around is a duration between two multiples of the TTL.
func (p *planner) around(low, high float64) time.Duration {
	return time.Duration((low + (high-low)*p.rng.Float64()) * float64(p.ttl)).Round(time.Millisecond)
}

func (p *planner) sign() int64 { return 2*p.rng.Int64N(2) - 1 }

// anyOf is divided by every number of nodes or members that a fleet of a storm has.
const anyOf = 60

func drawAnyone(p *planner, b *plannedFault) { b.Nth = p.rng.IntN(anyOf) }

// drawTime draws how long a fault stands, as a multiple of the TTL.
func drawTime(low, high float64) func(*planner, *plannedFault) {
	return func(p *planner, b *plannedFault) { b.For = p.around(low, high) }
}

// drawBoth draws how long it stands and whom it hits.
func drawBoth(low, high float64) func(*planner, *plannedFault) {
	return func(p *planner, b *plannedFault) {
		b.For = p.around(low, high)
		drawAnyone(p, b)
	}
}

// drawChange draws what makes the leader change while a node stops itself.
func drawChange(p *planner, b *plannedFault) {
	b.Trigger = []string{chaos.ByResignation, chaos.ByKill}[p.rng.IntN(2)]
}

// drawLate draws also how long the node stands still: mostly until it is late.
func drawLate(p *planner, b *plannedFault) {
	if b.Trigger == "" {
		drawChange(p, b)
	}
	if p.rng.IntN(4) == 0 {
		b.For = p.around(0.2, 0.4)
	} else {
		b.For, b.Sealed = p.around(0.5, 1), true
	}
}

func drawNothing(*planner, *plannedFault) {}

// stormKinds is the storm's table: the faults of chaos.Kinds by aim and weight.
func stormKinds(engine string) []stormKind {
	cut := "cut-engine"
	if engine == raftEngine {
		cut = "cut-peers"
	}
	leader := func(kind string, weight int, spec chaos.Spec, draw func(*planner, *plannedFault)) stormKind {
		return stormKind{kind: kind, aim: aimLeader, weight: weight, spec: spec, draw: draw, pauses: spec.Kind == chaos.PauseLeader}
	}
	anywhere := func(kind string, weight int, spec chaos.Spec, draw func(*planner, *plannedFault), whom string) stormKind {
		spec.Targets = []string{whom}
		return stormKind{kind: kind, aim: aimAnywhere, weight: weight, spec: spec, draw: draw, pauses: spec.Kind == chaos.Pause && (whom == chaos.Follower || whom == chaos.Quorum), alone: whom == chaos.Quorum}
	}
	change := func(act, moment string, weight int, draw func(*planner, *plannedFault)) stormKind {
		c := stormKind{kind: act + "-" + moment, aim: aimChange, weight: weight, draw: draw, pauses: true, spec: chaos.Spec{Kind: chaos.PauseAtMoment, At: moment}}
		if act == "kill" {
			c.spec.Kind = chaos.KillAtMoment
		}
		if moment == api.MomentResigning {
			c.spec.Trigger = chaos.ByResignation
		}
		return c
	}
	kill, pause := chaos.Spec{Kind: chaos.Kill}, chaos.Spec{Kind: chaos.Pause}
	all := []stormKind{
		leader("kill-leader", 3, chaos.Spec{Kind: chaos.KillLeader}, drawAnyone),
		leader("stop-leader", 2, chaos.Spec{Kind: chaos.StopLeader}, drawAnyone),
		leader("resign-leader", 2, chaos.Spec{Kind: chaos.ResignLeader}, drawAnyone),
		leader("transfer-leader", 2, chaos.Spec{Kind: chaos.TransferLeader}, drawAnyone),
		leader("pause-leader-short", 2, chaos.Spec{Kind: chaos.PauseLeader}, drawBoth(0.2, 0.5)),
		leader("pause-leader-long", 2, chaos.Spec{Kind: chaos.PauseLeader}, drawBoth(1.2, 1.8)),
		leader("pause-between", 3, chaos.Spec{Kind: chaos.PauseLeader, Between: true}, func(p *planner, b *plannedFault) { b.For, b.Sealed = p.ttl+500*time.Millisecond, true }),
		leader(cut, 2, chaos.Spec{Kind: chaos.PartitionLeader}, drawTime(1.1, 1.7)),
		leader(cut+"-up", 1, chaos.Spec{Kind: chaos.PartitionLeader, Way: chaos.Up}, drawTime(1.1, 1.7)),
		leader(cut+"-down", 1, chaos.Spec{Kind: chaos.PartitionLeader, Way: chaos.Down}, drawTime(1.1, 1.7)),
		leader("cut-ledger", 2, chaos.Spec{Kind: chaos.PartitionLeader, From: chaos.Ledger}, drawTime(1.1, 1.8)),
		leader("clock-offset", 1, chaos.Spec{Kind: chaos.SkewLeader}, func(p *planner, b *plannedFault) {
			b.For = p.around(0.3, 0.8)
			b.Offset = time.Duration(p.sign()*(100+p.rng.Int64N(300_000))) * time.Millisecond
		}),
		// Within the bound of docs/guarantees.md, so that nothing is excused by it.
		leader("clock-rate", 1, chaos.Spec{Kind: chaos.SkewLeader}, func(p *planner, b *plannedFault) {
			b.For = max(p.around(0.7, 1.2), 2*time.Second)
			b.PPM = p.sign() * 10_000
		}),
		leader("flap", 1, chaos.Spec{Kind: chaos.FlapLeader}, func(p *planner, b *plannedFault) { b.For, b.Seed = p.around(2, 3), p.rng.Uint64() }),
		anywhere("kill-follower", 2, kill, drawAnyone, chaos.Follower),
		anywhere("pause-follower", 1, pause, drawBoth(0.3, 1.5), chaos.Follower),
		anywhere("kill-ledger", 2, kill, drawAnyone, "ledger"),
		anywhere("pause-ledger", 2, pause, drawBoth(0.3, 1.5), "ledger"),
		anywhere("quorum-lost", 1, pause, func(p *planner, b *plannedFault) {
			b.For = p.silence + p.around(0.3, 0.6)
			drawAnyone(p, b)
		}, chaos.Quorum),
		change("pause", api.MomentGranted, 2, drawLate), change("kill", api.MomentGranted, 2, drawChange),
		change("pause", api.MomentSealed, 1, drawLate), change("kill", api.MomentSealed, 1, drawChange),
		change("pause", api.MomentResigning, 1, drawLate), change("kill", api.MomentResigning, 1, drawNothing),
		{kind: churnKind, aim: aimChange, weight: 1, draw: drawTime(1.5, 3), alone: true},
	}
	if engine == etcdEngine {
		// A leader of etcd that stands still for about a TTL may revoke living sessions
		// afterwards (docs/engines.md): it is not stopped for as long.
		all = append(all, anywhere("kill-member", 2, kill, drawAnyone, chaos.Member), anywhere("pause-member", 2, pause, drawBoth(0.2, 0.5), chaos.Member))
	}
	return all
}

func newPlanner(t Trial, rng *rand.Rand) *planner {
	p := &planner{rng: rng, ttl: t.TTL, silence: t.describe(Experiment{}, Full).SilentAfter(), decks: map[string][]stormKind{}, left: map[string][]stormKind{}}
	for _, c := range stormKinds(t.Engine) {
		p.decks[c.aim] = append(p.decks[c.aim], c)
	}
	return p
}

// deal draws the next fault that suits.
func (p *planner) deal(aim string, suits func(stormKind) bool) (stormKind, plannedFault) {
	for {
		if len(p.left[aim]) == 0 {
			var deck []stormKind
			for _, s := range p.decks[aim] {
				deck = append(deck, slices.Repeat([]stormKind{s}, s.weight)...)
			}
			p.rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			p.left[aim] = deck
		}
		deck := p.left[aim]
		i := slices.IndexFunc(deck, suits)
		if i < 0 {
			p.left[aim] = nil
			continue
		}
		s := deck[i]
		p.left[aim] = slices.Delete(deck, i, i+1)
		b := plannedFault{Kind: s.kind, Aim: aim, Spec: s.spec}
		s.draw(p, &b)
		return s, b
	}
}

// aim is at the leader in 6 of 10, anywhere in 2, at a change in 2.
func (p *planner) aim() string {
	if len(p.aims) == 0 {
		p.aims = append(slices.Repeat([]string{aimLeader}, 6), aimAnywhere, aimAnywhere, aimChange, aimChange)
		p.rng.Shuffle(len(p.aims), func(i, j int) { p.aims[i], p.aims[j] = p.aims[j], p.aims[i] })
	}
	a := p.aims[0]
	p.aims = p.aims[1:]
	return a
}

// plan is n steps. The first few are always of the same kinds, so that there is
// something to look at for each guarantee however short the storm is.
func (p *planner) plan(n int) []step {
	first := []string{"pause-between", "resign-leader", "quorum-lost"}
	steps := make([]step, 0, n)
	for i := range n {
		s := step{Calm: 200*time.Millisecond + time.Duration(p.rng.Int64N(600))*time.Millisecond}
		aim, suits := "", func(stormKind) bool { return true }
		if i < len(first) {
			suits = func(s stormKind) bool { return s.kind == first[i] }
			aim = aimLeader
			if first[i] == "quorum-lost" {
				aim = aimAnywhere
			}
		} else {
			aim = p.aim()
		}
		one, b := p.deal(aim, suits)
		s.Faults = []plannedFault{b}
		if i >= len(first) && !one.alone && p.rng.IntN(10) < 3 {
			s.After = p.rng.IntN(2) == 0
			if s.After {
				s.Delay = p.around(0, 0.5)
			}
			next := p.aim()
			if one.pauses && !s.After && next == aimChange {
				next = aimLeader // at a change somebody stands still, and must not twice
			}
			_, b := p.deal(next, func(o stormKind) bool {
				return !o.alone && (s.After || o.kind != one.kind && (!o.pauses || !one.pauses))
			})
			s.Faults = append(s.Faults, b)
		}
		steps = append(steps, s)
	}
	return steps
}
