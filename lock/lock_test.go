package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/lock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

func locks(t *testing.T, st store.Store, id string) *lock.Set {
	t.Helper()
	n, err := lease.New(st, lease.Config{Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{"set--*"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	s, err := lock.New(n, "set")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// witness checks that a name has one holder, and that its tokens increase.
type witness struct {
	t    *testing.T
	mu   sync.Mutex
	held map[string]bool
	last map[string]fence.Token
}

func newWitness(t *testing.T) *witness {
	return &witness{t: t, held: map[string]bool{}, last: map[string]fence.Token{}}
}

func (w *witness) begin(name string, token fence.Token) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held[name] {
		w.t.Errorf("%s is held twice", name)
	}
	if token <= w.last[name] {
		w.t.Errorf("%s: token %d after %d", name, token, w.last[name])
	}
	w.held[name], w.last[name] = true, token
}

func (w *witness) end(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[name] = false
}

// Two processes with several goroutines each lock a few names. A name has one holder at a time, its
// tokens increase, and no record is left.
func TestDo(t *testing.T) {
	st := mem.New(mem.Options{})
	t.Cleanup(st.Close)
	w := newWitness(t)
	var all sync.WaitGroup
	for p := range 2 {
		s := locks(t, st, fmt.Sprintf("p%d", p))
		for range 3 {
			all.Go(func() {
				for i := range 10 {
					name := fmt.Sprint(i % 3)
					err := s.Do(t.Context(), name, func(_ context.Context, term *tenure.Term) error {
						w.begin(name, term.Token())
						w.end(name)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	if left, err := st.Groups(t.Context(), store.Scope{"*"}, store.Page{}); err != nil || len(left) != 0 {
		t.Errorf("%d records are left, %v", len(left), err)
	}
}

// Do returns what work returns, and why the lock was lost if it was.
func TestOutcome(t *testing.T) {
	st := mem.New(mem.Options{})
	t.Cleanup(st.Close)
	s := locks(t, st, "p")
	broken := errors.New("broken")
	if err := s.Do(t.Context(), "a", func(context.Context, *tenure.Term) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	err := s.Do(t.Context(), "a", func(ctx context.Context, _ *tenure.Term) error {
		v, err := st.Read(ctx, "set--a")
		if err == nil {
			err = st.End(ctx, v.Holder, store.Forced)
		}
		<-ctx.Done()
		return err
	})
	if !errors.Is(err, tenure.ErrLost) {
		t.Errorf("a lost lock: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if err := s.Do(ctx, "a", func(context.Context, *tenure.Term) error { return nil }); !errors.Is(err, broken) {
		t.Errorf("without time: %v", err)
	}
}

// Names and sets that cannot be groups are refused.
func TestArguments(t *testing.T) {
	st := mem.New(mem.Options{})
	t.Cleanup(st.Close)
	s := locks(t, st, "p")
	for _, name := range []string{"", "A", "a/b", "-a", strings.Repeat("x", 59)} {
		if err := s.Do(t.Context(), name, nil); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	n, err := lease.New(st, lease.Config{Candidate: tenure.Candidate{ID: "q"}, Scope: store.Scope{"set--*"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"", "other", "a--b", "set-", "a/b", strings.Repeat("x", 62)} {
		if _, err := lock.New(n, set); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("set %q: %v", set, err)
		}
	}
	if _, err := lock.New(nil, "set"); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("no node: %v", err)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Names that are used in turn leave at most 64 keys per set in the store, and the tokens of names that
// come back increase. TENURE_LOCK_NAMES is how many: make bench-lock has a million.
func TestNamesInTurn(t *testing.T) {
	names := 300
	if n, err := strconv.Atoi(os.Getenv("TENURE_LOCK_NAMES")); err == nil {
		names = n
	}
	st := mem.New(mem.Options{})
	t.Cleanup(st.Close)
	s := locks(t, st, "p")
	w := newWitness(t)
	keys := func() (n int) { // without those of sessions, which come and go
		for _, prefix := range []string{"record/", "grant/", "history/", "floor/"} {
			st.Driver.Do(func(now clock.Instant, e *mem.Engine) { n += len(e.List(now, prefix, "", 1<<30)) })
		}
		return n
	}
	begun := time.Now()
	for i := range names + names/10 {
		name := fmt.Sprint(i % names)
		err := s.Do(t.Context(), name, func(_ context.Context, term *tenure.Term) error {
			w.begin(name, term.Token())
			w.end(name)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	left := keys()
	if left > 64 {
		t.Errorf("%d keys are left", left)
	}
	t.Logf("%d names in %v: %d keys are left", names, time.Since(begun).Round(time.Millisecond), left)
}
