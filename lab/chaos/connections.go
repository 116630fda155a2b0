package chaos

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

// cutOff cuts processes off, silently: nothing is refused, nothing arrives. Nodes are cut
// off the engine, the ledger or (Peers) every node that is not named, which splits the
// fleet; the ledger and members of the engine are cut off all nodes. For the leader it has
// an effect when a keep-alive or a write of it failed or its term ended. For processes
// that were named it has one also when a proxy lets nothing through although the process
// behind it answers, or when a node on the other side of a split missed something.
func cutOff(f *Fleet, s Spec, targets []Target) (*procedure, error) {
	c, err := f.cutting(targets, s.From, s.Way)
	if err != nil {
		return nil, err
	}
	from, sides, named := string(s.From), targets, s.Kind == Partition
	switch {
	case targets[0].kind != isNode:
		from, sides = "nodes", nil
	case named && s.From == Peers:
		if sides, err = f.nodes(); err != nil {
			return nil, err
		}
	}
	var all []cutNode
	unheard := ""
	return &procedure{
		heal: c.heal, healed: "reaches the " + from + " again",
		set: func(ctx context.Context) (string, clock.Instant, error) {
			for _, t := range sides {
				before, err := f.read(ctx, t)
				if err != nil {
					return "", 0, err
				}
				all = append(all, cutNode{t, before})
			}
			begun := f.host.Now()
			return fmt.Sprintf("cut off the %s, %s, for %v", from, directionWords(s.Way), s.For), begun, c.make(ctx)
		},
		felt: func(ctx context.Context, healed bool) string {
			if named && !healed && unheard == "" {
				unheard = c.unheard(ctx)
			}
			return joinWords(unheard, f.missedBy(ctx, all, s.From, named))
		},
	}, nil
}

// cutNode is a node that was cut off, and its metrics before.
type cutNode struct {
	node   Target
	before reading
}

// flap makes a connection of the leader come and go, for half to one and a half TTL each
// time, at random by the seed. It has an effect as cutOff has.
func flap(f *Fleet, s Spec, targets []Target) (*procedure, error) {
	l := &flapping{fleet: f, Spec: s, target: targets[0], chance: rand.New(rand.NewPCG(s.Seed, 0))}
	w := &procedure{healed: "reaches the " + string(s.From) + " for good", hold: l.hold, heal: l.mend, felt: l.felt}
	who := "its"
	if s.Follow {
		w.shown, who = Measured, "the leader's" // others than the target may feel it
	}
	if _, err := f.cutting(targets, s.From, s.Way); err != nil {
		return nil, err
	}
	w.set = func(ctx context.Context) (string, clock.Instant, error) {
		begun, err := l.sever(ctx)
		return fmt.Sprintf("%s connection to the %s comes and goes near %v, for %v (seed %d)", who, s.From, f.ttl, s.For, s.Seed), begun, err
	}
	return w, nil
}

// flapping is a connection that comes and goes, at one node at a time.
type flapping struct {
	Spec
	fleet  *Fleet
	target Target
	chance *rand.Rand
	cut    *cut
	stands Fault // the cut that stands; without a beginning none does

	mu    sync.Mutex
	cuts  int
	nodes []cutNode
}

// sever cuts the target off.
func (l *flapping) sever(ctx context.Context) (clock.Instant, error) {
	c, err := l.fleet.cutting([]Target{l.target}, l.From, l.Way)
	if err != nil {
		return 0, err
	}
	before, err := l.fleet.read(ctx, l.target)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	l.cuts++
	if !slices.ContainsFunc(l.nodes, func(h cutNode) bool { return h.node.ID == l.target.ID }) {
		l.nodes = append(l.nodes, cutNode{l.target, before})
	}
	l.mu.Unlock()
	l.cut, l.stands = c, Fault{Name: l.Kind, Target: l.target.ID, Token: l.target.Token, Begun: l.fleet.host.Now()}
	return l.stands.Begun, c.make(ctx)
}

// mend lets everything through again.
func (l *flapping) mend(ctx context.Context) error {
	if l.cut == nil {
		return nil
	}
	if err := l.cut.heal(ctx); err != nil {
		return err
	}
	if l.stands.Begun > 0 && l.Each != nil {
		l.stands.Healed = l.fleet.host.Now()
		l.Each(l.stands, nil)
	}
	l.stands = Fault{}
	return nil
}

func (l *flapping) hold(ctx context.Context, begun clock.Instant) error {
	f := l.fleet
	left := func(d time.Duration) time.Duration { return min(d, begun.Add(l.For).Sub(f.host.Now())) }
	near := func() time.Duration { return time.Duration((0.5 + l.chance.Float64()) * float64(f.ttl)) }
	for {
		down := left(near())
		if !pause(ctx, down) || left(f.ttl) <= 0 {
			return nil
		}
		mctx, cancel := context.WithTimeoutCause(ctx, healTime, errSlow)
		err := l.mend(mctx)
		cancel()
		if err != nil {
			return err
		}
		f.say(f.host.Now(), "%s reaches the %s after %v", l.target.ID, l.From, down.Round(time.Millisecond))
		if !pause(ctx, left(near())) || left(f.ttl) <= 0 {
			return nil
		}
		if l.Follow {
			if l.target, err = f.Leader(ctx, 0); err != nil {
				return err
			}
			if left(f.ttl) <= 0 {
				return nil
			}
		}
		if _, err := l.sever(ctx); err != nil {
			return err
		}
		f.say(f.host.Now(), "%s is cut off again", l.target.ID)
	}
}

// felt is what the nodes that were cut off have missed.
func (l *flapping) felt(ctx context.Context, healed bool) string {
	l.mu.Lock()
	cuts, all := l.cuts, slices.Clone(l.nodes)
	l.mu.Unlock()
	found := l.fleet.missedBy(ctx, all, l.From, l.Follow)
	if found == "" || !healed {
		return found
	}
	return joinWords(fmt.Sprintf("cuts: %d", cuts), found)
}

func directionWords(w Way) string {
	switch w {
	case Up:
		return "one way: what it sends does not arrive"
	case Down:
		return "one way: no answer arrives"
	}
	return "both ways"
}

// missedBy is what nodes say that they have missed, with their ids where wanted.
func (f *Fleet) missedBy(ctx context.Context, all []cutNode, from From, withIDs bool) string {
	var found []string
	for _, h := range all {
		m := f.missed(ctx, h, from)
		if m != "" && withIDs {
			m = h.node.ID + ": " + m
		}
		found = append(found, m)
	}
	return joinWords(found...)
}

// missed is what a node says that it has missed since a reading.
func (f *Fleet) missed(ctx context.Context, h cutNode, from From) string {
	now, err := f.read(ctx, h.node)
	if err != nil {
		return ""
	}
	failed := counted(now.grown(h.before, "tenure_renew_failures_total", "reason"), "keep-alives failed")
	if from == Ledger {
		outcomes := now.grown(h.before, "tenure_fleet_writes_total", "outcome")
		delete(outcomes, "ok")
		failed = counted(outcomes, "writes failed")
	}
	ended := now.grown(h.before, "tenure_terms_ended_total", "reason")
	for _, orderly := range []lease.Reason{lease.Resigned, lease.Transferred} { // not by this fault
		delete(ended, string(orderly))
	}
	return joinWords(failed, counted(ended, "terms ended"), refusals(now, h.before))
}

const refusedWords = "writes refused"

func refusals(now, before reading) string {
	return counted(now.grown(before, "tenure_fence_rejected_total", "reason"), refusedWords)
}

// counted is a count by words, such as: keep-alives failed: 3 (timeout 3).
func counted(by map[string]float64, what string) string {
	var sum float64
	var parts []string
	for _, word := range slices.Sorted(maps.Keys(by)) {
		sum += by[word]
		parts = append(parts, fmt.Sprintf("%s %.0f", word, by[word]))
	}
	if sum == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %.0f (%s)", what, sum, strings.Join(parts, ", "))
}
