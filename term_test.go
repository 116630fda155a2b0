package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/elector"
	"github.com/tenurehq/tenure/fence"
)

// begin returns the scripted grant of one term.
func begin(trusted time.Duration) *scriptedGrant {
	e := newScriptedElector(1)
	e.trusted = trusted
	return e.grant(7)
}

// wantEnded requires the term to be over for that reason, whichever way it is
// asked.
func wantEnded(t *testing.T, term *tenure.Term, reason error) {
	t.Helper()
	err := term.Check()
	var ended *tenure.EndedError
	if !errors.As(err, &ended) || !errors.Is(err, reason) {
		t.Fatalf("Check: %v, want an EndedError for %v", err, reason)
	}
	if ended.Group != term.Group() || ended.Token != term.Token() {
		t.Errorf("it names group %q, token %d", ended.Group, ended.Token)
	}
	select {
	case <-term.Context().Done():
	default:
		t.Error("the context goes on")
	}
	if c := context.Cause(term.Context()); !errors.Is(c, reason) {
		t.Errorf("the context ended with %v, want %v", c, reason)
	}
	if r := term.Remaining(); r != 0 {
		t.Errorf("%v remain after the end", r)
	}
}

// Check is nil to the last nanosecond of trust, follows each extension, and then
// ends the term for good: no later beat brings it back.
func TestCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := begin(5 * time.Second)
		if r := g.term.Remaining(); r != 5*time.Second {
			t.Errorf("%v remain, want 5s", r)
		}
		time.Sleep(5*time.Second - 1)
		if err := g.term.Check(); err != nil {
			t.Fatal(err)
		}
		g.extend(5 * time.Second)
		time.Sleep(5*time.Second - 1)
		if err := g.term.Check(); err != nil {
			t.Fatal(err)
		}
		if err := g.term.Context().Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Nanosecond)
		wantEnded(t, g.term, tenure.ErrExpired)
		g.extend(time.Hour)
		wantEnded(t, g.term, tenure.ErrExpired)
		if ended, released := g.told(); len(ended) != 1 || len(released) != 0 {
			t.Errorf("the engine was told of %d ends and %d releases, want 1 and 0", len(ended), len(released))
		}
	})
}

// A term tells what it is.
func TestTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := begin(time.Second).term
		if term.Group() != "g" || term.Token() != 7 || term.Candidate().ID != "a" {
			t.Errorf("group %q, token %d, candidate %q", term.Group(), term.Token(), term.Candidate().ID)
		}
		if got, want := term.Stamp().WithSeq(3), (fence.Stamp{Deployment: "d", Group: "g", Token: 7, Seq: 3}); got != want {
			t.Errorf("stamp %v, want %v", got, want)
		}
	})
}

// The end of a trust that is shared ends all its terms.
func TestSharedTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := begin(time.Second)
		other, _ := elector.NewTerm(elector.TermConfig{Group: "h", Token: 1, Trust: g.trust, Grant: &scriptedGrant{}})
		time.Sleep(time.Second)
		wantEnded(t, g.term, tenure.ErrExpired)
		wantEnded(t, other, tenure.ErrExpired)
	})
}

// A trust that nobody has set has ended: an engine that forgets to set it leads
// nobody astray.
func TestNewTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if r := elector.NewTrust(stopwatch{time.Now()}).Remaining(); r > 0 {
			t.Errorf("%v remain", r)
		}
	})
}

// I1: of all who end a term, one does, and it is that one's cause. I2: whoever
// has seen it end never sees a Check that passes.
func TestEndsOnce(t *testing.T) {
	for range 200 {
		g := begin(time.Hour)
		var winners atomic.Int32
		var all sync.WaitGroup
		cause := make(chan error, 9)
		for i := range 8 {
			reason := fmt.Errorf("reason %d", i)
			all.Go(func() {
				if g.end(reason) {
					winners.Add(1)
					cause <- reason
				}
				if g.term.Check() == nil {
					t.Error("Check passes after the end")
				}
			})
		}
		all.Go(func() {
			if err := g.term.Resign(t.Context()); err != nil {
				t.Error(err)
			}
			if ended, _ := g.told(); len(ended) > 0 {
				winners.Add(1)
				cause <- tenure.ErrResigned
			}
		})
		all.Wait()
		if n := winners.Load(); n != 1 {
			t.Fatalf("%d ended it", n)
		}
		wantEnded(t, g.term, <-cause)
	}
}

// Resign, by whoever campaigned, ends the term, releases the group and passes on
// whether that was confirmed. The engine hears of the end before the release.
func TestResign(t *testing.T) {
	g := begin(time.Hour)
	g.releaseErr = errors.New("no answer")
	if err := g.term.Resign(t.Context()); !errors.Is(err, g.releaseErr) {
		t.Errorf("Resign: %v", err)
	}
	wantEnded(t, g.term, tenure.ErrResigned)
	ended, released := g.told()
	if len(ended) != 1 || !errors.Is(ended[0], tenure.ErrResigned) || !slices.Equal(released, []string{""}) {
		t.Errorf("the engine was told: ended %v, released to %q", ended, released)
	}
}

// A term that ended by itself is resigned too: the cause stays, the engine hears
// that work has stopped.
func TestResignAfterEnd(t *testing.T) {
	g := begin(time.Hour)
	g.end(tenure.ErrLost)
	if err := g.term.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	wantEnded(t, g.term, tenure.ErrLost)
	if ended, released := g.told(); len(ended) != 0 || len(released) != 1 {
		t.Errorf("the engine was told: ended %v, released to %q", ended, released)
	}
}

// TransferTo hands over to the one that is named.
func TestTransferTo(t *testing.T) {
	g := begin(time.Hour)
	if err := g.term.TransferTo(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	wantEnded(t, g.term, tenure.ErrTransferred)
	ended, released := g.told()
	if len(ended) != 1 || !errors.Is(ended[0], tenure.ErrTransferred) || !slices.Equal(released, []string{"b"}) {
		t.Errorf("the engine was told: ended %v, released to %q", ended, released)
	}
}

// A successor that cannot take over leaves the term as it was.
func TestTransferRefused(t *testing.T) {
	unreachable := errors.New("the engine cannot be reached")
	for _, tt := range []struct {
		to          string
		answer, err error
		asked       int
	}{
		{"c", fmt.Errorf("candidate c: %w", tenure.ErrSuccessor), tenure.ErrSuccessor, 1},
		{"c", unreachable, unreachable, 1},
		{"a", nil, tenure.ErrSuccessor, 0}, // itself: nobody is asked
	} {
		g := begin(time.Hour)
		g.successor = tt.answer
		if err := g.term.TransferTo(t.Context(), tt.to); !errors.Is(err, tt.err) {
			t.Errorf("transfer to %q: %v, want %v", tt.to, err, tt.err)
		}
		if err := g.term.Check(); err != nil {
			t.Errorf("transfer to %q: the term is over: %v", tt.to, err)
		}
		if ended, released := g.told(); len(ended)+len(released) > 0 || len(g.asked) != tt.asked {
			t.Errorf("transfer to %q: asked %q, ended %v, released %q", tt.to, g.asked, ended, released)
		}
	}
}

// A term that is over cannot be handed on, and says why it is over.
func TestTransferAfterEnd(t *testing.T) {
	g := begin(time.Hour)
	g.end(tenure.ErrLost)
	if err := g.term.TransferTo(t.Context(), "b"); !errors.Is(err, tenure.ErrLost) {
		t.Errorf("TransferTo: %v, want ErrLost", err)
	}
	if _, released := g.told(); len(released) > 0 {
		t.Errorf("released to %q", released)
	}
}

// sealerFunc is a sink that only seals.
type sealerFunc func(context.Context, fence.Stamp) error

func (f sealerFunc) Seal(ctx context.Context, s fence.Stamp) error { return f(ctx, s) }

// Seal goes through the sinks in order, with the term's stamp, and stops at the
// first that refuses, which it names.
func TestSeal(t *testing.T) {
	g := begin(time.Hour)
	var sealed []string
	sink := func(name string, err error) fence.Sealer {
		return sealerFunc(func(_ context.Context, s fence.Stamp) error {
			if s != g.term.Stamp() {
				t.Errorf("%s is sealed with %v", name, s)
			}
			sealed = append(sealed, name)
			return err
		})
	}
	stale := &fence.StaleError{Stamp: g.term.Stamp(), Mark: fence.Mark{Token: 8}}
	err := g.term.Seal(t.Context(), sink("one", nil), sink("two", stale), sink("three", nil))
	if !errors.Is(err, fence.ErrRefused) || !strings.Contains(err.Error(), `sink 2 of 3 for group "g" with token 7`) {
		t.Errorf("Seal: %v", err)
	}
	if !slices.Equal(sealed, []string{"one", "two"}) {
		t.Errorf("sealed %q", sealed)
	}
	if err := g.term.Seal(t.Context()); err != nil {
		t.Errorf("no sinks: %v", err)
	}
}

// A term that ended seals nothing more: a zombie must not close a sink to its
// successor's work either.
func TestSealAfterEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := begin(time.Second)
		sealed := 0
		slow := sealerFunc(func(context.Context, fence.Stamp) error {
			sealed++
			time.Sleep(time.Second)
			return nil
		})
		if err := g.term.Seal(t.Context(), slow, slow); !errors.Is(err, tenure.ErrExpired) {
			t.Errorf("Seal: %v, want ErrExpired", err)
		}
		if sealed != 1 {
			t.Errorf("%d sinks were sealed, want 1: trust ended with the first", sealed)
		}
	})
}

// States have the names that people know them by; what is none is unknown.
func TestStateString(t *testing.T) {
	for state, want := range map[tenure.State]string{tenure.Led: "led", tenure.Vacant: "vacant", tenure.Unknown: "unknown", 99: "unknown"} {
		if got := state.String(); got != want {
			t.Errorf("state %d is %q, want %q", state, got, want)
		}
	}
}
