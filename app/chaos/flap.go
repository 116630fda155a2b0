package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
)

const flapName = "flap-leader"

// FlapLeader makes a connection of the leader come and go. It has bitten as a partition
// has.
func (f *Fleet) FlapLeader(ctx context.Context, p Flap) (Fault, error) {
	p.From, p.Way = or(p.From, Engine), or(p.Way, Both)
	p.For = or(p.For, 10*f.ttl)
	return f.strike(ctx, func(target Leader) (work, error) {
		l := &flapping{fleet: f, flap: p, chance: rand.New(rand.NewPCG(p.Seed, 0))}
		w := work{name: flapName, healed: "reaches the " + string(p.From) + " for good", hold: l.hold, heal: l.mend, felt: l.felt, shown: Felt}
		if p.Follow {
			w.shown = Measured // others than the target may feel it
		}
		if _, err := f.cutting([]Leader{target}, p.From, p.Way); err != nil {
			return w, err
		}
		w.set = func(ctx context.Context, target Leader) (string, clock.Instant, error) {
			who := "its"
			if p.Follow {
				who = "the leader's"
			}
			begun, err := l.sever(ctx, target)
			return fmt.Sprintf("%s connection to the %s comes and goes near %v, for %v (seed %d)", who, p.From, f.ttl, p.For, p.Seed), begun, err
		}
		return w, nil
	})
}

// flapping is a connection that comes and goes, at one node at a time.
type flapping struct {
	fleet  *Fleet
	flap   Flap
	chance *rand.Rand
	cut    *cut
	stands Fault // the cut that stands; without a beginning none does

	mu   sync.Mutex
	cuts int
	hit  []hit
}

// hit is a node that was cut off, and what it said before.
type hit struct {
	node   Leader
	before reading
}

// sever cuts a node off.
func (l *flapping) sever(ctx context.Context, target Leader) (clock.Instant, error) {
	c, err := l.fleet.cutting([]Leader{target}, l.flap.From, l.flap.Way)
	if err != nil {
		return 0, err
	}
	before, err := l.fleet.read(ctx, target)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	l.cuts++
	if !slices.ContainsFunc(l.hit, func(h hit) bool { return h.node.ID == target.ID }) {
		l.hit = append(l.hit, hit{target, before})
	}
	l.mu.Unlock()
	l.cut, l.stands = c, Fault{Name: flapName, Target: target.ID, Token: target.Token, Begun: l.fleet.host.Now()}
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
	if l.stands.Begun > 0 && l.flap.Each != nil {
		l.stands.Healed = l.fleet.host.Now()
		l.flap.Each(l.stands)
	}
	l.stands = Fault{}
	return nil
}

func (l *flapping) hold(ctx context.Context, target Leader, begun clock.Instant) error {
	f := l.fleet
	end := begun.Add(l.flap.For)
	left := func(d time.Duration) time.Duration { return min(d, end.Sub(f.host.Now())) }
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
		f.say(f.host.Now(), "%s reaches the %s after %v", target.ID, l.flap.From, down.Round(time.Millisecond))
		if !pause(ctx, left(near())) || left(f.ttl) <= 0 {
			return nil
		}
		if l.flap.Follow {
			var err error
			if target, err = f.Leader(ctx, 0); err != nil {
				return err
			}
			if left(f.ttl) <= 0 {
				return nil
			}
		}
		if _, err := l.sever(ctx, target); err != nil {
			return err
		}
		f.say(f.host.Now(), "%s is cut off again", target.ID)
	}
}

// felt is what the nodes that were cut off have missed.
func (l *flapping) felt(ctx context.Context, _ Leader, healed bool) string {
	l.mu.Lock()
	cuts, all := l.cuts, slices.Clone(l.hit)
	l.mu.Unlock()
	var missed []string
	for _, h := range all {
		m := l.fleet.missed(ctx, h.node, h.before, l.flap.From)
		if m != "" && l.flap.Follow {
			m = h.node.ID + ": " + m
		}
		missed = append(missed, m)
	}
	found := words(missed...)
	if found == "" || !healed {
		return found
	}
	return words(fmt.Sprintf("cuts: %d", cuts), found)
}
