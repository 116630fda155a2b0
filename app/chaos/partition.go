package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

// PartitionLeader cuts the leader off, silently: nothing is refused, nothing arrives.
// It has bitten when a keep-alive or a write of the node failed, or its term ended.
func (f *Fleet) PartitionLeader(ctx context.Context, p Partition) (Fault, error) {
	p.From, p.Way = or(p.From, Engine), or(p.Way, Both)
	p.For = or(p.For, 2*f.ttl)
	return f.strike(ctx, func(target Leader) (work, error) {
		w := work{name: "partition-leader", shown: Felt, hold: f.lasting(p.For, p.Until), healed: "reaches the " + string(p.From) + " again"}
		c, err := f.cutting([]Leader{target}, p.From, p.Way)
		if err != nil {
			return w, err
		}
		w.heal = c.heal
		var before reading
		w.set = func(ctx context.Context, target Leader) (string, clock.Instant, error) {
			var err error
			if before, err = f.read(ctx, target); err != nil {
				return "", 0, err
			}
			begun := f.host.Now()
			return fmt.Sprintf("cut off the %s, %s, for %v", p.From, way(p.Way), p.For), begun, c.make(ctx)
		}
		w.felt = func(ctx context.Context, target Leader, _ bool) string { return f.missed(ctx, target, before, p.From) }
		return w, nil
	})
}

// Partition cuts processes off, silently: nodes off the engine, the ledger or (Peers,
// the default of Raft) every node that is not named, which splits the fleet in two; the
// ledger and members of the engine off all nodes. It has bitten when what a proxy leads
// to answers, and does not through the proxy, or when a node (of either side of a split)
// says that it has missed something.
func (f *Fleet) Partition(ctx context.Context, p Partition, what ...string) (Fault, error) {
	if f.raft {
		p.From = or(p.From, Peers)
	}
	p.From, p.Way = or(p.From, Engine), or(p.Way, Both)
	p.For = or(p.For, 2*f.ttl)
	return f.strikeNamed(ctx, "partition", what, func(targets []Leader) (work, error) {
		from := string(p.From)
		if targets[0].kind != isNode {
			from = "nodes"
		}
		w := work{shown: Measured, hold: f.lasting(p.For, p.Until), healed: "reaches the " + from + " again"}
		c, err := f.cutting(targets, p.From, p.Way)
		if err != nil {
			return w, err
		}
		w.heal = c.heal
		sides := targets // who may feel it
		if p.From == Peers && targets[0].kind == isNode {
			if sides, err = f.nodes(); err != nil {
				return w, err
			}
		}
		felt := make([]func(context.Context) string, len(sides))
		w.set = func(ctx context.Context, _ Leader) (string, clock.Instant, error) {
			for i, t := range sides {
				var err error
				if felt[i], err = f.feeling(ctx, t, p.From); err != nil {
					return "", 0, err
				}
			}
			begun := f.host.Now()
			return fmt.Sprintf("cut off the %s, %s, for %v", from, way(p.Way), p.For), begun, c.make(ctx)
		}
		unheard := ""
		w.felt = func(ctx context.Context, _ Leader, healed bool) string {
			if !healed && unheard == "" {
				unheard = c.unheard(ctx)
			}
			all := []string{unheard}
			for i, t := range sides {
				if e := felt[i](ctx); e != "" {
					all = append(all, t.ID+": "+e)
				}
			}
			return words(all...)
		}
		return w, nil
	})
}

// feeling returns what a node has missed since, as far as it says so.
func (f *Fleet) feeling(ctx context.Context, t Leader, from From) (func(context.Context) string, error) {
	if t.kind != isNode {
		return func(context.Context) string { return "" }, nil
	}
	before, err := f.read(ctx, t)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) string { return f.missed(ctx, t, before, from) }, nil
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

func way(w Way) string {
	switch w {
	case Up:
		return "one way: what it sends does not arrive"
	case Down:
		return "one way: no answer arrives"
	}
	return "both ways"
}

// missed is what a node says that it has missed since a reading.
func (f *Fleet) missed(ctx context.Context, target Leader, before reading, from From) string {
	now, err := f.read(ctx, target)
	if err != nil {
		return ""
	}
	failed := counted(now.grown(before, "tenure_renew_failures_total", "reason"), "keep-alives failed")
	if from == Ledger {
		outcomes := now.grown(before, "tenure_fleet_writes_total", "outcome")
		delete(outcomes, "ok")
		failed = counted(outcomes, "writes failed")
	}
	ended := now.grown(before, "tenure_terms_ended_total", "reason")
	for _, orderly := range []lease.Reason{lease.Resigned, lease.Transferred} { // by another than this fault
		delete(ended, string(orderly))
	}
	return words(failed, counted(ended, "terms ended"), refusals(now, before))
}

const refusedWords = "writes refused"

func refusals(now, before reading) string {
	return counted(now.grown(before, "tenure_fence_rejected_total", "reason"), refusedWords)
}

// counted is a count by words, such as: 3 keep-alives failed (timeout 3).
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
