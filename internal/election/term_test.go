package election

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// term leads billing in a session of a campaign, and returns what its client says it holds.
func (w *world) term() Claim {
	w.t.Helper()
	out := w.campaign(Config{Retriable: true}).run()
	return Claim{Group: billing, Node: "a", Term: out.Led[billing].Token, Session: out.Session.ID, Own: true}
}

func nobody(context.Context, string) (store.Session, error) {
	return store.Session{}, store.ErrSuccessor
}

// A renewal is confirmed for the very term, and by no other term, node or session.
func TestRenew(t *testing.T) {
	w := newWorld(t)
	c := w.term()
	v, beat, err := Renew(t.Context(), w.store, c)
	if err != nil || v.Token != c.Term || beat.TTL != time.Hour {
		t.Errorf("%+v, %+v, %v", v, beat, err)
	}
	other := w.open("b", store.OpenOptions{Scope: store.Scope{"*"}})
	for name, change := range map[string]func(*Claim){
		"term":    func(c *Claim) { c.Term++ },
		"node":    func(c *Claim) { c.Node = "b" },
		"session": func(c *Claim) { c.Session = other.ID },
		"dead":    func(c *Claim) { c.Session = "0123456789abcdef" },
	} {
		c := c
		change(&c)
		var over *NotLeaderError
		if _, _, err := Renew(t.Context(), w.store, c); !errors.As(err, &over) || over.View.Candidate.ID != "a" {
			t.Errorf("another %s: %v", name, err)
		}
	}
}

// The session of a campaign ends with its term: once, whoever asks again, and for no later
// term of the same client.
func TestResign(t *testing.T) {
	w := newWorld(t)
	c := w.term()
	for range 2 {
		if out, err := Resign(t.Context(), w.store, nobody, c, ""); err != nil || out.To != "" || out.Term != c.Term || out.Left != nil || w.lives(c.Session) {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	h, err := w.store.History(t.Context(), billing, store.Page{})
	if err != nil || h[0].Reason != store.Resigned || h[0].End.IsZero() {
		t.Errorf("%+v, %v", h, err)
	}
	// It is written down: else the term would last until somebody reads it.
	if v, err := w.store.Read(t.Context(), billing); err != nil || v.Holder != "" {
		t.Errorf("%+v, %v", v, err)
	}
	next := w.term()
	if _, err := Resign(t.Context(), w.store, nobody, c, ""); err != nil || !w.lives(next.Session) || next.Term != 2 {
		t.Errorf("%+v, %v", next, err)
	}
	wrong := next
	wrong.Term = 7
	var over *NotLeaderError
	if _, err := Resign(t.Context(), w.store, nobody, wrong, ""); !errors.As(err, &over) {
		t.Errorf("%v", err)
	}
	if _, err := Resign(t.Context(), w.store, nobody, next, "b"); !errors.Is(err, store.ErrSuccessor) || !w.lives(next.Session) {
		t.Errorf("%v", err)
	}
}

// regaining is a store in which the session leads again when it was released.
type regaining struct {
	store.Store
	w *world
}

func (s regaining) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	released, err := s.Store.Release(ctx, id, to, why, held...)
	s.w.seize(id, billing)
	return released, err
}

// A resignation does not close a session that leads again: a retry of the campaign has come
// to lead with it.
func TestResignRaces(t *testing.T) {
	w := newWorld(t)
	c := w.term()
	ask := store.Request{ID: "r", Verb: store.StepDown, Group: billing, Token: c.Term, TTL: time.Hour}
	if err := w.store.Ask(t.Context(), c.Session, ask); err != nil {
		t.Fatal(err)
	}
	if out, err := Resign(t.Context(), regaining{w.store, w}, nobody, c, ""); err != nil || out.Left != nil || !w.lives(c.Session) {
		t.Errorf("%+v, %v", out, err)
	}
	if a, err := w.store.Answered(t.Context(), c.Session, "r"); err != nil || a.Outcome != store.Done {
		t.Errorf("%+v, %v", a, err)
	}
	if h, err := w.store.History(t.Context(), billing, store.Page{}); err != nil || h[1].Reason != store.SteppedDown {
		t.Errorf("%+v, %v", h, err)
	}
}

// A request for a transfer is obeyed if its candidate is there. The client's own session stays.
func TestResignAsAsked(t *testing.T) {
	for _, there := range []bool{true, false} {
		w := newWorld(t)
		b := w.open("b", store.OpenOptions{Scope: store.Scope{"*"}})
		c := w.term()
		c.Own = false
		ask := store.Request{ID: "r", Verb: store.Transfer, To: "b", Group: billing, TTL: time.Hour}
		if err := w.store.Ask(t.Context(), c.Session, ask); err != nil {
			t.Fatal(err)
		}
		find := nobody
		want := Resigned{Term: 1}
		if there {
			find = func(context.Context, string) (store.Session, error) { return b, nil }
			want = Resigned{Term: 2, To: "b"}
		}
		out, err := Resign(t.Context(), w.store, find, c, "")
		if err != nil || out != want || !w.lives(c.Session) {
			t.Errorf("there %v: %+v, %v", there, out, err)
		}
		if v, err := w.store.Read(t.Context(), billing); err != nil || (v.State == tenure.Led) != there {
			t.Errorf("there %v: %+v, %v", there, v, err)
		}
		if a, err := w.store.Answered(t.Context(), c.Session, "r"); err != nil || (a.Outcome == store.Done) != there {
			t.Errorf("there %v: %+v, %v", there, a, err)
		}
	}
}
