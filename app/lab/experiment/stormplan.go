package experiment

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
	"github.com/tenurehq/tenure/app/fleet/api"
)

// The aims of a storm's faults.
const (
	aimLeader   = "leader"
	aimAnywhere = "anywhere"
	aimChange   = "change" // the moment at which another comes to lead
)

// blow is one fault of a plan. Whom it hits is a role: who has it is seen when it is set.
type blow struct {
	Kind string `json:"kind"`
	Aim  string `json:"aim"`
	// For is how long it stands. A pause for at least that long and until a successor
	// has sealed the ledger has Sealed.
	For    time.Duration `json:"for,omitempty"`
	Sealed bool          `json:"sealed,omitempty"`
	// Nth chooses among those of the role.
	Nth int `json:"nth"`
	// Way and Offset, PPM, Trigger, Seed are of cuts, clocks, changes and flapping.
	Way     chaos.Way     `json:"way,omitempty"`
	Offset  time.Duration `json:"offset,omitempty"`
	PPM     int64         `json:"ppm,omitempty"`
	Trigger string        `json:"trigger,omitempty"`
	Seed    uint64        `json:"seed,omitempty"`

	step int // in which it is set
}

func (b blow) String() string {
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

// step is one blow, or two: the second at once with the first, or Delay after the first
// is over, while the fleet recovers from it.
type step struct {
	// Calm is how long the fleet is left alone before, once somebody leads.
	Calm  time.Duration `json:"calm"`
	Blows []blow        `json:"blows"`
	After bool          `json:"after,omitempty"`
	Delay time.Duration `json:"delay,omitempty"`
}

func (s step) String() string {
	if len(s.Blows) == 1 {
		return s.Blows[0].String()
	}
	how := ", together with "
	if s.After {
		how = fmt.Sprintf(", and %v after it ", s.Delay)
	}
	return s.Blows[0].String() + how + s.Blows[1].String()
}

// card is a kind of fault: how often it is dealt, and how it is drawn.
type card struct {
	kind   string
	weight int
	draw   func(*planner) blow
	// pauses: a node stands still. Two such at once could be the same node, and the end
	// of one pause would end the other.
	pauses bool
	// alone: it is no part of a pair.
	alone bool
}

// planner deals faults by a seed. Each aim has its pile, which is shuffled and dealt to
// its end before it is shuffled again: so every kind comes, and comes again.
type planner struct {
	rng *rand.Rand
	ttl time.Duration
	// silence is how long belief lasts at most without a quorum.
	silence time.Duration
	piles   map[string][]card
	left    map[string][]card
	aims    []string
}

// around is a duration between two multiples of the TTL.
func (p *planner) around(low, high float64) time.Duration {
	return time.Duration((low + (high-low)*p.rng.Float64()) * float64(p.ttl)).Round(time.Millisecond)
}

func (p *planner) sign() int64 { return 2*p.rng.Int64N(2) - 1 }

// anyOf is divided by every number of nodes or members that a fleet of a storm has.
const anyOf = 60

func drawPlain(p *planner) blow { return blow{Nth: p.rng.IntN(anyOf)} }

// drawLasting draws a fault that stands for a multiple of the TTL.
func drawLasting(low, high float64) func(*planner) blow {
	return func(p *planner) blow { return blow{For: p.around(low, high), Nth: p.rng.IntN(anyOf)} }
}

func drawCut(way chaos.Way) func(*planner) blow {
	return func(p *planner) blow { return blow{For: p.around(1.1, 1.7), Way: way} }
}

// drawSealed draws a pause that another's term overtakes.
func drawSealed(p *planner) blow { return blow{For: p.ttl + 500*time.Millisecond, Sealed: true} }

// What brings a change about.
const (
	triggerResign = "resignation"
	triggerKill   = "kill"
)

// drawChange draws how the change comes about in which a node stops itself.
func drawChange(p *planner) blow {
	return blow{Trigger: []string{triggerResign, triggerKill}[p.rng.IntN(2)]}
}

// drawLate draws how long the node stands still: mostly until it is late.
func drawLate(b blow, p *planner) blow {
	if p.rng.IntN(4) == 0 {
		b.For = p.around(0.2, 0.4)
	} else {
		b.For, b.Sealed = p.around(0.5, 1), true
	}
	return b
}

func newPlanner(t Trial, rng *rand.Rand) *planner {
	engine := t.Engine
	run := t.describe(Experiment{}, Full)
	cutKind := "cut-engine"
	if engine == raftEngine {
		cutKind = "cut-peers"
	}
	p := &planner{rng: rng, ttl: t.TTL, left: map[string][]card{}}
	p.silence = run.SilentAfter()
	p.piles = map[string][]card{
		aimLeader: {
			{kind: "kill-leader", weight: 3, draw: drawPlain},
			{kind: "stop-leader", weight: 2, draw: drawPlain},
			{kind: "resign-leader", weight: 2, draw: drawPlain},
			{kind: "transfer-leader", weight: 2, draw: drawPlain},
			{kind: "pause-leader-short", weight: 2, draw: drawLasting(0.2, 0.5), pauses: true},
			{kind: "pause-leader-long", weight: 2, draw: drawLasting(1.2, 1.8), pauses: true},
			{kind: "pause-between", weight: 3, draw: drawSealed, pauses: true},
			{kind: cutKind, weight: 2, draw: drawCut(chaos.Both)},
			{kind: cutKind + "-up", weight: 1, draw: drawCut(chaos.Up)},
			{kind: cutKind + "-down", weight: 1, draw: drawCut(chaos.Down)},
			{kind: "cut-ledger", weight: 2, draw: func(p *planner) blow { return blow{For: p.around(1.1, 1.8), Way: chaos.Both} }},
			{kind: "clock-offset", weight: 1, draw: func(p *planner) blow {
				return blow{For: p.around(0.3, 0.8), Offset: time.Duration(p.sign()*(100+p.rng.Int64N(300_000))) * time.Millisecond}
			}},
			// Within the bound of docs/guarantees.md, so that nothing is excused by it.
			{kind: "clock-rate", weight: 1, draw: func(p *planner) blow {
				return blow{For: max(p.around(0.7, 1.2), 2*time.Second), PPM: p.sign() * 10_000}
			}},
			{kind: "flap", weight: 1, draw: func(p *planner) blow { return blow{For: p.around(2, 3), Seed: p.rng.Uint64()} }},
		},
		aimAnywhere: {
			{kind: "kill-follower", weight: 2, draw: drawPlain},
			{kind: "pause-follower", weight: 1, draw: drawLasting(0.3, 1.5), pauses: true},
			{kind: "kill-ledger", weight: 2, draw: drawPlain},
			{kind: "pause-ledger", weight: 2, draw: drawLasting(0.3, 1.5)},
			{kind: "quorum-lost", weight: 1, pauses: true, alone: true, draw: func(p *planner) blow {
				return blow{For: p.silence + p.around(0.3, 0.6), Nth: p.rng.IntN(anyOf)}
			}},
		},
		aimChange: {
			{kind: "pause-" + api.MomentGranted, weight: 2, draw: func(p *planner) blow { return drawLate(drawChange(p), p) }, pauses: true},
			{kind: "kill-" + api.MomentGranted, weight: 2, draw: drawChange, pauses: true},
			{kind: "pause-" + api.MomentSealed, weight: 1, draw: func(p *planner) blow { return drawLate(drawChange(p), p) }, pauses: true},
			{kind: "kill-" + api.MomentSealed, weight: 1, draw: drawChange, pauses: true},
			{kind: "pause-" + api.MomentResigning, weight: 1, draw: func(p *planner) blow { return drawLate(blow{Trigger: triggerResign}, p) }, pauses: true},
			{kind: "kill-" + api.MomentResigning, weight: 1, draw: func(*planner) blow { return blow{Trigger: triggerResign} }, pauses: true},
			{kind: "churn", weight: 1, draw: func(p *planner) blow { return blow{For: p.around(1.5, 3)} }, alone: true},
		},
	}
	if engine == etcdEngine {
		p.piles[aimAnywhere] = append(p.piles[aimAnywhere],
			card{kind: "kill-member", weight: 2, draw: drawPlain},
			// A leader of etcd that stands still for about a TTL may revoke living
			// sessions afterwards (docs/engines.md): it is not stopped for as long.
			card{kind: "pause-member", weight: 2, draw: drawLasting(0.2, 0.5)})
	}
	return p
}

// deal draws the next fault that suits.
func (p *planner) deal(aim string, suits func(card) bool) (card, blow) {
	for {
		if len(p.left[aim]) == 0 {
			var pile []card
			for _, s := range p.piles[aim] {
				pile = append(pile, slices.Repeat([]card{s}, s.weight)...)
			}
			p.rng.Shuffle(len(pile), func(i, j int) { pile[i], pile[j] = pile[j], pile[i] })
			p.left[aim] = pile
		}
		pile := p.left[aim]
		i := slices.IndexFunc(pile, suits)
		if i < 0 {
			p.left[aim] = nil
			continue
		}
		s := pile[i]
		p.left[aim] = slices.Delete(pile, i, i+1)
		b := s.draw(p)
		b.Kind, b.Aim = s.kind, aim
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
		aim, suits := "", func(card) bool { return true }
		if i < len(first) {
			suits = func(s card) bool { return s.kind == first[i] }
			aim = aimLeader
			if first[i] == "quorum-lost" {
				aim = aimAnywhere
			}
		} else {
			aim = p.aim()
		}
		one, b := p.deal(aim, suits)
		s.Blows = []blow{b}
		if i >= len(first) && !one.alone && p.rng.IntN(10) < 3 {
			s.After = p.rng.IntN(2) == 0
			if s.After {
				s.Delay = p.around(0, 0.5)
			}
			next := p.aim()
			if one.pauses && !s.After && next == aimChange {
				next = aimLeader // at a change somebody stands still, and must not twice
			}
			_, b := p.deal(next, func(o card) bool {
				return !o.alone && (s.After || o.kind != one.kind && (!o.pauses || !one.pauses))
			})
			s.Blows = append(s.Blows, b)
		}
		steps = append(steps, s)
	}
	return steps
}
