package raft

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
)

type sealer func(fence.Stamp) error

func (f sealer) Seal(_ context.Context, s fence.Stamp) error { return f(s) }

// A cluster whose data was restored from a backup grants tokens that were granted
// before. When a sink says so, Lead stops, and no node begins a term until the epoch is
// raised.
func TestDataLost(t *testing.T) {
	f := newFleet(t, nil, "a", "b", "c")
	f.start("a", "b", "c")
	ctx, cancel := within(patience)
	defer cancel()
	seen := fence.Token(0)
	err := tenure.Lead(ctx, f.nodes["a"], func(context.Context, *tenure.Term) error {
		t.Error("work began")
		return tenure.ErrDone
	}, tenure.WithSinks(sealer(func(s fence.Stamp) error {
		seen = s.Token + 7
		return &fence.StaleError{Stamp: s, Mark: fence.Mark{Deployment: s.Deployment, Group: s.Group, Token: seen, Session: "before"}}
	})), tenure.WithLog(slog.New(slog.DiscardHandler)))
	if !errors.Is(err, tenure.ErrDataLost) {
		t.Fatalf("Lead: %v", err)
	}
	short, cancelShort := within(time.Second)
	defer cancelShort()
	if _, err := f.nodes["b"].Campaign(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a campaign before the epoch was raised: %v", err)
	}
	if err := f.nodes["c"].RaiseEpoch(ctx, 1); err != nil {
		t.Fatal(err)
	}
	term := f.win("b")
	if term.Token() <= seen {
		t.Errorf("token %d follows %d", term.Token(), seen)
	}
	if term.Stamp().Session == "" {
		t.Error("the stamp does not say which session it belongs to")
	}
}
