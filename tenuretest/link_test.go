package tenuretest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// slowStore answers an open after a while.
type slowStore struct {
	store.Store
	takes time.Duration
}

func (s slowStore) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	session, err := s.Store.Open(ctx, c, ttl, o)
	time.Sleep(s.takes)
	return session, err
}

// open makes a call of 5 s through a connection whose gate has a fault until 10 s; the fault
// begins before the answer, which comes at 1 s.
func open(t *testing.T, trouble func(*fault)) (took time.Duration, sessions int, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := mem.New(mem.Options{Clock: bubbleClock{time.Now()}})
		defer st.Close()
		r := &link{store: slowStore{st, 2 * time.Second}, gate: newGate(), patience: time.Second}
		time.AfterFunc(time.Second, func() { r.gate.set(trouble) })
		time.AfterFunc(10*time.Second, func() { r.gate.set(func(f *fault) { *f = fault{} }) })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		_, err = r.Open(ctx, tenure.Candidate{ID: "a"}, time.Hour, store.OpenOptions{Scope: store.Scope{"*"}})
		took = time.Since(start)
		line, lerr := st.Sessions(t.Context(), store.Scope{"*"}, store.Page{})
		if lerr != nil {
			t.Fatal(lerr)
		}
		sessions = len(line)
		time.Sleep(time.Minute)
	})
	return took, sessions, err
}

// A fault before the answer does not undo what the store has done: in a partition the answer
// is lost at the deadline and the outcome is unknown, in a pause it arrives afterwards, and a
// crashed node gets nothing.
func TestAnswerInTrouble(t *testing.T) {
	for _, tt := range []struct {
		name    string
		trouble func(*fault)
		takes   time.Duration
		err     error
	}{
		{"well", func(*fault) {}, 2 * time.Second, nil},
		{"cut off", func(f *fault) { f.cut = true }, 5 * time.Second, context.DeadlineExceeded},
		{"paused", func(f *fault) { f.paused = true }, 10 * time.Second, nil},
		{"crashed", func(f *fault) { f.dead = true }, 2 * time.Second, errCrashed},
	} {
		took, sessions, err := open(t, tt.trouble)
		if took != tt.takes || !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
			t.Errorf("%s: %v after %v, want %v after %v", tt.name, err, took, tt.err, tt.takes)
		}
		if sessions != 1 {
			t.Errorf("%s: the store has %d sessions, want 1", tt.name, sessions)
		}
		if err != nil && store.Definite(err) {
			t.Errorf("%s: the error is definite, but the store has acted: %v", tt.name, err)
		}
	}
}

// Every call to the store passes the gate: none gets past a crash.
func TestNothingBypassesTheGate(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	r := &link{store: st, gate: newGate(), patience: time.Hour}
	r.gate.set(func(f *fault) { f.dead = true })
	ctx := t.Context()
	only := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"Open":          only(r.Open(ctx, tenure.Candidate{ID: "a"}, time.Hour, store.OpenOptions{Scope: store.Scope{"*"}})),
		"Session":       only(r.Session(ctx, "s1")),
		"KeepAlive":     only(r.KeepAlive(ctx, "s1")),
		"Close":         r.End(ctx, "s1", store.Closed),
		"Acquire":       only(r.Acquire(ctx, "s1", store.Record{Group: "g"})),
		"Release":       only(r.Release(ctx, "s1", "", store.Resigned, store.Record{Group: "g"})),
		"Ask":           r.Ask(ctx, "s1", store.Request{}),
		"Answer":        r.Answer(ctx, "s1", "r", store.Answer{}),
		"Answered":      only(r.Answered(ctx, "s1", "r")),
		"Read":          only(r.Read(ctx, "g")),
		"Groups":        only(r.Groups(ctx, store.Scope{"*"}, store.Page{})),
		"Sessions":      only(r.Sessions(ctx, store.Scope{"*"}, store.Page{})),
		"History":       only(r.History(ctx, "g", store.Page{})),
		"Meta":          only(r.Meta(ctx)),
		"RaiseEpoch":    only(r.RaiseEpoch(ctx, 1)),
		"Attributes":    only(r.Attributes(ctx, "group/g")),
		"SetAttributes": only(r.SetAttributes(ctx, store.Attributes{Name: "group/g"})),
	} {
		if !errors.Is(err, errCrashed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, err := range r.Watch(ctx, store.Scope{"*"}) {
		if !errors.Is(err, errCrashed) {
			t.Errorf("Watch: %v", err)
		}
	}
	if r.Caps() != st.Caps() {
		t.Error("the caps are not the store's")
	}
}
