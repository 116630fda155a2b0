package storm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/reference/api"
)

// The aims of a storm's faults.
const (
	aimLeader   = "leader"
	aimAnywhere = "anywhere"
	aimChange   = "change" // the moment of a change of leader
)

// plannedFault is one fault of a plan. Its target is a role: which process has it is decided
// when the fault is injected.
type plannedFault struct {
	Kind string `json:"kind"`
	Aim  string `json:"aim"`
	// Sealed: it lasts at least Spec.For and until a successor has sealed the ledger.
	Sealed bool `json:"sealed,omitempty"`
	chaos.Spec

	step int
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

// step is one fault or two: both at once, or with After the second one Delay after the first
// is over, while the fleet recovers.
type step struct {
	// Calm is how long the fleet has a leader and no fault before.
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

// kind is a kind of fault of the storm: a row of chaos.Kinds with its options, how often it
// is drawn, and how the rest of its options are drawn.
type kind struct {
	name, aim string
	weight    int
	spec      chaos.Spec
	draw      func(*planner, *plannedFault)
	// pauses: a node is stopped. Two such faults at once could stop the same node, and the end
	// of one would end the other.
	pauses bool
	// alone: it is never part of a pair.
	alone bool
}

// class is what the fault does to the guarantees of its target.
func (c kind) class() string {
	row, _ := chaos.KindOf(c.spec.Kind)
	switch {
	case c.name == churnKind:
		return history.ClassKill
	case !row.Named:
		return row.Class
	case c.spec.Targets[0] == inspect.Quorum:
		return history.ClassQuorum
	case c.spec.Targets[0] == inspect.Follower:
		return c.spec.Kind // kill or pause
	}
	return ""
}

// classOf returns the class of a kind by its name.
func classOf(name string) string {
	for _, c := range slices.Concat(kinds(trial.Etcd), kinds(trial.Raft)) {
		if c.name == name {
			return c.class()
		}
	}
	return ""
}

// churnKind kills one leader after the other.
const churnKind = "churn"

// planner draws faults by a seed. Each aim has a shuffled list of kinds that is used up
// before it is shuffled again, so that every kind occurs.
type planner struct {
	rng *rand.Rand
	ttl time.Duration
	// silence is how long a node may believe without a quorum.
	silence time.Duration
	decks   map[string][]kind
	left    map[string][]kind
	aims    []string
}

// around draws a duration between two multiples of the TTL.
func (p *planner) around(low, high float64) time.Duration {
	return time.Duration((low + (high-low)*p.rng.Float64()) * float64(p.ttl)).Round(time.Millisecond)
}

func (p *planner) sign() int64 { return 2*p.rng.Int64N(2) - 1 }

// drawAnyone draws the target. 60 is divisible by every number of nodes or members.
func drawAnyone(p *planner, b *plannedFault) { b.Nth = p.rng.IntN(60) }

// drawTime draws how long a fault lasts, in TTLs.
func drawTime(low, high float64) func(*planner, *plannedFault) {
	return func(p *planner, b *plannedFault) { b.For = p.around(low, high) }
}

// drawBoth draws how long a fault lasts, and its target.
func drawBoth(low, high float64) func(*planner, *plannedFault) {
	return func(p *planner, b *plannedFault) {
		b.For = p.around(low, high)
		drawAnyone(p, b)
	}
}

// drawChange draws what makes the leader change.
func drawChange(p *planner, b *plannedFault) {
	b.Trigger = []string{chaos.ByResignation, chaos.ByKill}[p.rng.IntN(2)]
}

// drawLate also draws how long the node is stopped: mostly for longer than its lease.
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

// kinds is the storm's table: faults of chaos.Kinds by aim and weight.
func kinds(engine string) []kind {
	// A server of another project is one member. It is cut off from all nodes and not stopped: the
	// processes of PostgreSQL would run on without their parent.
	lose := chaos.Partition
	if engine == trial.Etcd || engine == trial.Raft {
		lose = chaos.Pause
	}
	cut := "cut-engine"
	if engine == trial.Raft {
		cut = "cut-peers"
	}
	leader := func(name string, weight int, spec chaos.Spec, draw func(*planner, *plannedFault)) kind {
		return kind{name: name, aim: aimLeader, weight: weight, spec: spec, draw: draw, pauses: spec.Kind == chaos.PauseLeader}
	}
	anywhere := func(name string, weight int, fault, target string, draw func(*planner, *plannedFault)) kind {
		return kind{
			name: name, aim: aimAnywhere, weight: weight, spec: chaos.Spec{Kind: fault, Targets: []string{target}}, draw: draw,
			pauses: fault == chaos.Pause && (target == inspect.Follower || target == inspect.Quorum), alone: target == inspect.Quorum,
		}
	}
	change := func(name, fault, moment string, weight int, draw func(*planner, *plannedFault)) kind {
		c := kind{name: name + moment, aim: aimChange, weight: weight, draw: draw, pauses: true, spec: chaos.Spec{Kind: fault, At: moment}}
		if moment == api.MomentResigning {
			c.spec.Trigger = chaos.ByResignation
		}
		return c
	}
	const pauseAt, killAt = "pause-", "kill-"
	all := []kind{
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
		// Within the bound of docs/guarantees.md, so that it excuses nothing.
		leader("clock-rate", 1, chaos.Spec{Kind: chaos.SkewLeader}, func(p *planner, b *plannedFault) {
			b.For = max(p.around(0.7, 1.2), 2*time.Second)
			b.PPM = p.sign() * 10_000
		}),
		leader("flap", 1, chaos.Spec{Kind: chaos.FlapLeader}, func(p *planner, b *plannedFault) { b.For, b.Seed = p.around(2, 3), p.rng.Uint64() }),
		anywhere("kill-follower", 2, chaos.Kill, inspect.Follower, drawAnyone),
		anywhere("pause-follower", 1, chaos.Pause, inspect.Follower, drawBoth(0.3, 1.5)),
		anywhere("kill-ledger", 2, chaos.Kill, "ledger", drawAnyone),
		anywhere("pause-ledger", 2, chaos.Pause, "ledger", drawBoth(0.3, 1.5)),
		anywhere("quorum-lost", 1, lose, inspect.Quorum, func(p *planner, b *plannedFault) {
			b.For = p.silence + p.around(0.3, 0.6)
			drawAnyone(p, b)
		}),
		change(pauseAt, chaos.PauseAtMoment, api.MomentGranted, 2, drawLate), change(killAt, chaos.KillAtMoment, api.MomentGranted, 2, drawChange),
		change(pauseAt, chaos.PauseAtMoment, api.MomentSealed, 1, drawLate), change(killAt, chaos.KillAtMoment, api.MomentSealed, 1, drawChange),
		change(pauseAt, chaos.PauseAtMoment, api.MomentResigning, 1, drawLate), change(killAt, chaos.KillAtMoment, api.MomentResigning, 1, func(*planner, *plannedFault) {}),
		{name: churnKind, aim: aimChange, weight: 1, draw: drawTime(1.5, 3), alone: true},
	}
	if engine != trial.Etcd && engine != trial.Raft {
		all = append(all, anywhere("kill-member", 2, chaos.Kill, inspect.Member, drawAnyone))
	}
	if engine == trial.Etcd {
		// An etcd leader that is stopped for about a TTL may revoke living sessions afterwards
		// (docs/engines.md): it is stopped for a shorter time.
		all = append(all, anywhere("kill-member", 2, chaos.Kill, inspect.Member, drawAnyone), anywhere("pause-member", 2, chaos.Pause, inspect.Member, drawBoth(0.2, 0.5)))
	}
	return all
}

func newPlanner(t trial.Trial, rng *rand.Rand) *planner {
	p := &planner{rng: rng, ttl: t.TTL, silence: t.Describe().SilentAfter(), decks: map[string][]kind{}, left: map[string][]kind{}}
	for _, c := range kinds(t.Engine) {
		p.decks[c.aim] = append(p.decks[c.aim], slices.Repeat([]kind{c}, c.weight)...)
	}
	return p
}

// deal draws the next fault that suits.
func (p *planner) deal(aim string, suits func(kind) bool) (kind, plannedFault) {
	for {
		i := slices.IndexFunc(p.left[aim], suits)
		if i < 0 {
			deck := slices.Clone(p.decks[aim])
			p.rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			p.left[aim] = deck
			continue
		}
		k := p.left[aim][i]
		p.left[aim] = slices.Delete(p.left[aim], i, i+1)
		b := plannedFault{Kind: k.name, Aim: aim, Spec: k.spec}
		k.draw(p, &b)
		return k, b
	}
}

// aim is the leader in 6 of 10 faults, anywhere in 2, a change in 2.
func (p *planner) aim() string {
	if len(p.aims) == 0 {
		p.aims = append(slices.Repeat([]string{aimLeader}, 6), aimAnywhere, aimAnywhere, aimChange, aimChange)
		p.rng.Shuffle(len(p.aims), func(i, j int) { p.aims[i], p.aims[j] = p.aims[j], p.aims[i] })
	}
	a := p.aims[0]
	p.aims = p.aims[1:]
	return a
}

// plan draws n steps. The first ones are always of the same kinds, so that even a short storm
// tests each guarantee.
func (p *planner) plan(n int) []step {
	first := []struct{ kind, aim string }{{"pause-between", aimLeader}, {"resign-leader", aimLeader}, {"quorum-lost", aimAnywhere}}
	steps := make([]step, 0, n)
	for i := range n {
		s := step{Calm: 200*time.Millisecond + time.Duration(p.rng.Int64N(600))*time.Millisecond}
		if i < len(first) {
			_, b := p.deal(first[i].aim, func(k kind) bool { return k.name == first[i].kind })
			s.Faults = []plannedFault{b}
			steps = append(steps, s)
			continue
		}
		one, b := p.deal(p.aim(), func(kind) bool { return true })
		s.Faults = []plannedFault{b}
		if !one.alone && p.rng.IntN(10) < 3 {
			s.After = p.rng.IntN(2) == 0
			if s.After {
				s.Delay = p.around(0, 0.5)
			}
			next := p.aim()
			if one.pauses && !s.After && next == aimChange {
				next = aimLeader // a fault at a change stops a node, and two must not
			}
			_, b := p.deal(next, func(o kind) bool {
				return !o.alone && (s.After || o.name != one.name && (!o.pauses || !one.pauses))
			})
			s.Faults = append(s.Faults, b)
		}
		steps = append(steps, s)
	}
	return steps
}
