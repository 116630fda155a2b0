package storetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
)

// campaignWithin bounds a campaign that must succeed, also on a busy machine.
const campaignWithin = time.Minute

// Rounds is how often a test repeats what it shows: $TENURE_ROUNDS, or usual.
func Rounds(t *testing.T, usual int) int {
	n, err := strconv.Atoi(os.Getenv("TENURE_ROUNDS"))
	if err != nil {
		return usual
	}
	t.Logf("%d rounds", n)
	return n
}

// Node returns a node that is closed when the test ends.
func Node(t *testing.T, s store.Store, id string, timing lease.Timing, scope ...string) *lease.Node {
	t.Helper()
	n, err := lease.New(s, lease.Config{Candidate: tenure.Candidate{ID: id}, Scope: scope, Timing: timing, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = n.Close(ctx)
	})
	return n
}

// Elector returns the elector of a node.
func Elector(t *testing.T, n *lease.Node, group string) *lease.Elector {
	t.Helper()
	e, err := n.Elector(group)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Candidate is the elector of a node of its own for one group.
func Candidate(t *testing.T, s store.Store, id string, ttl time.Duration, group string) *lease.Elector {
	t.Helper()
	return Elector(t, Node(t, s, id, lease.Timing{TTL: ttl}, group), group)
}

// Lead campaigns until it leads.
func Lead(t *testing.T, e *lease.Elector) *tenure.Term {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), campaignWithin)
	defer cancel()
	term, err := e.Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// Wait lets real time pass, for a fault that has to last longer than a lease.
func Wait(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// Eventually tries until it succeeds, for half a minute.
func Eventually(t *testing.T, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("still not: ", err)
		}
	}
}

// Fault is a fault of an engine.
type Fault struct {
	Name         string
	Strike, Heal func()
}

// Survive checks that none of the faults ends a term.
func Survive(t *testing.T, terms []*tenure.Term, lasts time.Duration, faults ...Fault) {
	t.Helper()
	for _, f := range faults {
		f.Strike()
		Wait(t, lasts)
		for i, term := range terms {
			if err := term.Check(); err != nil {
				t.Errorf("%s: process %d lost its term: %v", f.Name, i, err)
			}
		}
		f.Heal()
		Wait(t, 2*time.Second)
	}
}

// QuorumLost checks that without a quorum a leader stops believing within its TTL, that calls fail
// with an error that says why, that what was known can be recalled with its age, and that
// everything goes on by itself afterwards.
func QuorumLost(t *testing.T, e *lease.Elector, ttl time.Duration, says string, stop, start func()) {
	t.Helper()
	term := Lead(t, e)
	if _, err := e.Leader(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	stopped := time.Now() // no keep-alive that was sent later is acknowledged
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if l, err := e.Leader(ctx); err == nil {
		t.Errorf("without a quorum Leader answers %+v", l)
	} else if took := time.Since(stopped); took > 4*time.Second || !strings.Contains(err.Error(), says) {
		t.Errorf("without a quorum Leader fails after %v with %v", took, err)
	}
	believed := stopped
	for now := time.Now(); term.Check() == nil; now = time.Now() {
		believed = now
		time.Sleep(time.Millisecond)
	}
	if lasted := believed.Sub(stopped); lasted > ttl {
		t.Errorf("the leader believed for %v without a quorum, with a TTL of %v", lasted, ttl)
	}
	if <-term.Context().Done(); !errors.Is(context.Cause(term.Context()), tenure.ErrExpired) {
		t.Errorf("the term ended with %v", context.Cause(term.Context()))
	}
	if l, age := e.Recall(); l.Token != term.Token() || l.State != tenure.Led || age < ttl/2 {
		t.Errorf("without a quorum Recall answers %+v of %v ago", l, age)
	}
	start()
	_ = term.Resign(t.Context()) // its work has stopped
	if again := Lead(t, e); again.Token() <= term.Token() {
		t.Errorf("token %d after token %d", again.Token(), term.Token())
	}
}

// Way is a client's connection to the engine. Cut drops its messages without an error.
type Way struct {
	Store     store.Store
	Cut, Heal func()
}

// NoOverlap checks that a leader whose client is cut off stops believing that it leads before the
// next one begins. Both are read on one clock.
func NoOverlap(t *testing.T, ttl time.Duration, ways [2]Way, rounds int) {
	t.Helper()
	var electors [2]*lease.Elector
	for i, w := range ways {
		electors[i] = Candidate(t, w.Store, fmt.Sprint("n", i), ttl, "g")
	}
	now := clock.System()
	leader, term := 0, Lead(t, electors[0])
	for round := range rounds {
		other := 1 - leader
		type won struct {
			term *tenure.Term
			at   clock.Instant
			err  error
		}
		next := make(chan won, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), campaignWithin)
			defer cancel()
			var w won
			w.term, w.err = electors[other].Campaign(ctx)
			w.at = now.Now()
			next <- w
		}()
		Eventually(t, func() error { // both wait
			found, err := ways[other].Store.Sessions(t.Context(), store.Scope{"g"}, store.Page{})
			if err == nil && len(found) < 2 {
				err = errors.New("a candidate has no session")
			}
			return err
		})
		ways[leader].Cut()
		var believed clock.Instant
		for at := now.Now(); term.Check() == nil; at = now.Now() {
			believed = at
			time.Sleep(200 * time.Microsecond)
		}
		w := <-next
		if w.err != nil {
			t.Fatalf("round %d: %v", round, w.err)
		}
		if w.at <= believed {
			t.Errorf("round %d: the new term began %v before the old one stopped believing", round, believed.Sub(w.at))
		}
		t.Logf("round %d: gap %v", round, w.at.Sub(believed))
		ways[leader].Heal()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_ = term.Resign(ctx)
		cancel()
		leader, term = other, w.term
	}
}
