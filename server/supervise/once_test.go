package supervise

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// lossyStore writes an attribute and loses the answer.
type lossyStore struct {
	store.Store
	lose int
}

func (s *lossyStore) SetAttributes(ctx context.Context, a store.Attributes) (store.Attributes, error) {
	got, err := s.Store.SetAttributes(ctx, a)
	if s.lose > 0 && err == nil {
		s.lose--
		return store.Attributes{}, errors.New("the answer was lost")
	}
	return got, err
}

func won(t *testing.T, st store.Store, id string) *tenure.Term {
	t.Helper()
	node, err := lease.New(st, lease.Config{Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{"g"}, Timing: lease.Timing{TTL: time.Minute}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close(context.Background()) })
	e, err := node.Elector("g")
	if err != nil {
		t.Fatal(err)
	}
	term, err := e.Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = term.Resign(context.Background()) })
	return term
}

// A success is recorded for everybody, even if the answers to both writes were lost.
func TestOnceDone(t *testing.T) {
	store := &lossyStore{Store: mem.New(mem.Options{})}
	term := won(t, store, "a")
	o := &once{store: store, name: "once/g/k", call: time.Second}
	store.lose = 1
	if done, err := o.begin(t.Context(), term); done || err != nil {
		t.Fatalf("begin: %v, %v", done, err)
	}
	store.lose = 1
	if err := o.finish(t.Context(), term); err != nil {
		t.Fatalf("finish: %v", err)
	}
	other := &once{store: store, name: "once/g/k", call: time.Second}
	if done, err := other.read(t.Context()); !done || err != nil || other.seen.Values["node"] != "a" {
		t.Errorf("another sees %v, %v, %v", done, other.seen, err)
	}
	if done, err := other.begin(t.Context(), term); !done || err != nil {
		t.Errorf("another begins: %v, %v", done, err)
	}
}

// An earlier leader cannot record a success; the later one can.
func TestOnceOvertaken(t *testing.T) {
	st := mem.New(mem.Options{})
	first := won(t, st, "a")
	slow := &once{store: st, name: "once/g/k", call: time.Second}
	if _, err := slow.begin(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	// The first leader learns only with its next keep-alive, in fifteen seconds, that its session
	// is closed.
	view, err := st.Read(t.Context(), "g")
	if err == nil {
		err = st.End(t.Context(), view.Holder, store.Forced)
	}
	if err != nil {
		t.Fatal(err)
	}
	second := won(t, st, "b")
	quick := &once{store: st, name: "once/g/k", call: time.Second}
	if _, err := quick.begin(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if err := slow.finish(t.Context(), first); err == nil || !strings.Contains(err.Error(), "token "+second.Token().String()) {
		t.Errorf("the one that was overtaken: %v", err)
	}
	if err := quick.finish(t.Context(), second); err != nil {
		t.Errorf("the one who leads: %v", err)
	}
}
