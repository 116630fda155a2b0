package mem

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// stepped counts the commits of a client, and does something else before one of them.
type stepped struct {
	*Driver
	commits int
	at      int // 1 is the next; 0: never
	other   func()
}

func (s *stepped) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	s.commits++
	if s.at--; s.at == 0 {
		s.other()
	}
	return s.Driver.Commit(ctx, t)
}

// guarded is an engine with a guarded node "a", and an operator at another client.
type guarded struct {
	*testing.T
	node, operator     *stepped
	atNode, atOperator *kv.Store
	store              store.Store // guarded, of the node
	session            store.Session
}

func newGuarded(t *testing.T, o Options, cfg guard.Config) *guarded {
	d := NewDriver(o)
	t.Cleanup(d.Close)
	g := &guarded{T: t, node: &stepped{Driver: d}, operator: &stepped{Driver: d}}
	for s, driver := range map[**kv.Store]kv.Driver{&g.atNode: g.node, &g.atOperator: g.operator} {
		var err error
		if *s, err = kv.New(t.Context(), driver, kv.Config{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup((*s).Close)
	}
	g.store = guard.Guard(g.atNode, cfg)
	var err error
	if g.session, err = g.open(); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *guarded) open() (store.Session, error) {
	return g.store.Open(g.Context(), tenure.Candidate{ID: "a"}, time.Hour, store.OpenOptions{Scope: store.Scope{"*"}})
}

func (g *guarded) set(name, cordon string) {
	a, err := g.atOperator.Attributes(g.Context(), name)
	if err == nil {
		a.Values = map[string]string{"cordon": cordon}
		_, err = g.atOperator.SetAttributes(g.Context(), a)
	}
	if err != nil {
		g.Fatal(err)
	}
}

// cordon returns the version of the group's record when the cordon was acknowledged.
func (g *guarded) cordon() uint64 {
	g.set("node/a", "disk")
	v, err := g.atOperator.Read(g.Context(), "g")
	if err != nil {
		g.Fatal(err)
	}
	return v.Version
}

func (g *guarded) acquire() ([]store.Record, error) {
	v, err := g.atOperator.Read(g.Context(), "g")
	if err != nil {
		g.Fatal(err)
	}
	return g.store.Acquire(g.Context(), g.session.ID, v.Record)
}

func guardModes() map[string]Options {
	return map[string]Options{"native": {}, "one key": {Observed: true, Keys: 1}}
}

// againstCordon returns the grants that were made after a cordon had been acknowledged, with
// the cordon at every place between the steps of an acquire.
func againstCordon(t *testing.T, o Options, cfg guard.Config) (wrong []string) {
	for at := 1; ; at++ {
		g := newGuarded(t, o, cfg)
		g.set("node/other", "a rule")
		cordoned, from := false, uint64(0)
		g.node.at, g.node.other = at, func() { cordoned, from = true, g.cordon() }
		granted, err := g.acquire()
		switch {
		case !cordoned && at < 2:
			t.Fatalf("an acquire had no step: %v", err)
		case !cordoned:
			return wrong
		case err == nil && granted[0].Version > from:
			wrong = append(wrong, fmt.Sprintf("cordoned before step %d at version %d: granted at version %d", at, from, granted[0].Version))
		case err != nil && !store.Definite(err):
			t.Fatalf("cordoned before step %d: %v", at, err)
		}
		v, err := g.atOperator.Read(t.Context(), "g")
		if err != nil {
			t.Fatal(err)
		}
		if v.State == tenure.Led && len(granted) == 0 {
			wrong = append(wrong, fmt.Sprintf("cordoned before step %d: refused, but the record names it", at))
		}
	}
}

// Nothing is granted after an acknowledged cordon, wherever the cordon comes in between.
func TestGuardAcquire(t *testing.T) {
	for name, o := range guardModes() {
		t.Run(name, func(t *testing.T) {
			for _, w := range againstCordon(t, o, guard.Config{}) {
				t.Error(w)
			}
		})
	}
}

// Whatever a guard has read while a cordon is written, it obeys the cordon once that is
// acknowledged, and the end of it.
func TestGuardCordon(t *testing.T) {
	for name, o := range guardModes() {
		t.Run(name, func(t *testing.T) {
			for at := 1; ; at++ {
				g := newGuarded(t, o, guard.Config{})
				g.set("node/other", "a rule")
				did := false
				g.operator.other = func() {
					did = true
					if held, err := g.acquire(); err == nil {
						_, err = g.store.Release(t.Context(), g.session.ID, "", "", held...)
						if err != nil {
							t.Fatal(err)
						}
					}
				}
				g.operator.at = at
				g.set("node/a", "disk")
				if g.operator.at = 0; !did {
					if at < 3 {
						t.Fatal("a cordon has fewer than two steps")
					}
					return
				}
				var bar *store.BarError
				if granted, err := g.acquire(); !errors.As(err, &bar) || bar.Code != "cordoned" || !errors.Is(err, store.ErrBusy) {
					t.Errorf("acquired during step %d of a cordon, then again: %+v, %v", at, granted, err)
				}
				if s, err := g.open(); !errors.As(err, &bar) {
					t.Errorf("a cordoned node opened %+v, %v", s, err)
				}
				g.set("node/a", "")
				if _, err := g.acquire(); err != nil {
					t.Errorf("after the cordon: %v", err)
				}
			}
		})
	}
}

// A guard reads rules once, and again only after they have changed: otherwise a campaign costs
// no more calls to the engine than without a guard. While there are no rules it reads none.
func TestGuardReads(t *testing.T) {
	calls := func(rules, guarded bool) int {
		g := newGuarded(t, Options{}, guard.Config{})
		if !guarded {
			g.store = g.atNode
		}
		if rules {
			g.set("node/other", "a rule")
			g.campaign() // reads them
		}
		g.node.commits = 0
		for range 10 {
			g.campaign()
		}
		return g.node.commits
	}
	for _, rules := range []bool{false, true} {
		if plain, guarded := calls(rules, false), calls(rules, true); plain != guarded || plain == 0 {
			t.Errorf("rules %v: ten campaigns make %d commits, with a guard %d", rules, plain, guarded)
		}
	}
}

// campaign opens a session, acquires the group and closes the session.
func (g *guarded) campaign() {
	session, err := g.open()
	if err == nil {
		var v store.View
		if v, err = g.store.Read(g.Context(), "g"); err == nil {
			_, err = g.store.Acquire(g.Context(), session.ID, v.Record)
		}
	}
	if err == nil {
		err = g.store.End(g.Context(), session.ID, store.Closed)
	}
	if err != nil {
		g.Fatal(err)
	}
}
