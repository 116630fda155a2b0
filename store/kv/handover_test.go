package kv_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/mem"
)

// A transfer costs one commit of the leader and one read of the successor, also when the
// leader has never had to do with the successor's session before.
func TestTransferCalls(t *testing.T) {
	d := mem.NewDriver(mem.Options{})
	t.Cleanup(d.Close)
	type process struct {
		*lease.Elector
		commits atomic.Int64
		store   *kv.Store
	}
	start := func(id string) *process {
		p := &process{}
		s, err := kv.New(t.Context(), &bent{Driver: d, commits: func(kv.Txn, kv.Result) { p.commits.Add(1) }}, kv.Config{})
		if err != nil {
			t.Fatal(err)
		}
		n, err := lease.New(s, lease.Config{
			Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{"g"}, Timing: lease.Timing{TTL: patience}, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_ = n.Close(ctx)
			s.Close()
		})
		p.store = s
		if p.Elector, err = n.Elector("g"); err != nil {
			t.Fatal(err)
		}
		return p
	}
	a, b := start("a"), start("b")
	term, err := a.Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := make(chan *tenure.Term, 1)
	go func() {
		term, err := b.Campaign(t.Context())
		if err != nil {
			t.Error(err)
		}
		began <- term
	}()
	// b can take over when it has a session and its watch is synced.
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		line, err := a.store.Sessions(t.Context(), store.Scope{"g"}, store.Page{})
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d sessions, %v", len(line), err)
		}
		if len(line) == 2 {
			break
		}
	}
	wait, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for u, err := range b.store.Watch(wait, store.Scope{"g"}) {
		if err != nil {
			t.Fatal(err)
		}
		if u.Kind == store.Synced {
			break
		}
	}
	a.commits.Store(0)
	b.commits.Store(0)
	if err := term.TransferTo(wait, "b"); err != nil {
		t.Fatal(err)
	}
	next := <-began
	if a, b := a.commits.Load(), b.commits.Load(); a != 1 || b != 1 {
		t.Errorf("the leader made %d calls and the successor %d, want 1 and 1", a, b)
	}
	if next != nil {
		_ = next.Resign(wait)
	}
}
