package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// One call leads, and leaves nothing behind.
func ExampleLead() {
	store := mem.New(mem.Options{}) // for tests and examples; production uses a real engine
	defer store.Close()
	err := lease.Lead(context.Background(), store, "billing", "node-1", func(ctx context.Context, term *tenure.Term) error {
		fmt.Printf("%s leads %s with token %d\n", term.Candidate().ID, term.Group(), term.Token())
		return tenure.ErrDone
	})
	fmt.Println(err)
	// Output:
	// node-1 leads billing with token 1
	// <nil>
}

// When its context ends, Lead has waited for work and closed its session.
func TestLeadEndsWithContext(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	ctx, cancel := context.WithCancelCause(context.Background())
	enough := errors.New("enough")
	returned := false
	err := lease.Lead(ctx, st, "g", "a", func(ctx context.Context, _ *tenure.Term) error {
		cancel(enough)
		<-ctx.Done()
		returned = true
		return nil
	})
	if !errors.Is(err, enough) || !returned {
		t.Errorf("Lead returned %v, work has returned: %v", err, returned)
	}
	if left, err := st.Sessions(context.Background(), store.Scope{"*"}, store.Page{}); err != nil || len(left) != 0 {
		t.Errorf("%d sessions are left, %v", len(left), err)
	}
	for _, wrong := range []error{
		lease.Lead(context.Background(), nil, "g", "a", nil), lease.Lead(context.Background(), st, "G!", "a", nil),
		lease.Lead(context.Background(), st, "g", "", nil), lease.Lead(nil, st, "g", "a", nil), //nolint:staticcheck // on purpose
	} {
		if !errors.Is(wrong, store.ErrInvalid) {
			t.Errorf("a wrong argument: %v", wrong)
		}
	}
}

// TryCampaign takes what is vacant and fails where another leads. It leaves no campaign
// behind.
func TestTryCampaign(t *testing.T) {
	bubble(t, func(w *world) {
		a, b := w.node(w.mem, "a"), w.node(w.mem, "b")
		term, err := w.elector(a, "g").TryCampaign(w.soon())
		if err != nil {
			w.Fatal(err)
		}
		for range 2 {
			if _, err := w.elector(b, "g").TryCampaign(w.soon()); !errors.Is(err, lease.ErrLed) {
				w.Fatalf("b returned %v", err)
			}
		}
		w.resign(term)
		time.Sleep(time.Minute)
		w.vacant("g")
		if _, err := w.elector(b, "g").TryCampaign(w.soon()); err != nil {
			w.Fatal(err)
		}
		w.led("g", "b")
	})
}

// AtRisk says that keep-alives fail while the term may still be trusted, and that they are
// acknowledged again.
func TestAtRisk(t *testing.T) {
	bubble(t, func(w *world) {
		hung := newHungStore(w, w.mem)
		store := newCountingStore(hung)
		term := w.win(w.node(store, "a"), "g")
		time.Sleep(time.Minute + time.Millisecond)
		safe := term.AtRisk()
		hung.hang(keepAlive)
		heard := store.lastHeard()
		<-safe
		timing := lease.Default()
		if at := heard.Add(time.Duration(timing.Misses) * timing.Beat); !time.Now().Equal(at) || term.Check() != nil {
			w.Errorf("at risk at %v, want %v; the term says %v", time.Now(), at, term.Check())
		}
		hung.letGo()
		time.Sleep(timing.Beat)
		select {
		case <-term.AtRisk():
			w.Error("still at risk after a keep-alive was acknowledged")
		default:
		}
		if err := term.Check(); err != nil {
			w.Error(err)
		}
	})
}
