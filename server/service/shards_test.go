package service

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/shard"
	"github.com/tenurehq/tenure/store"
)

// GET /shards shows who owns the shards of a set, and nothing of a set that nobody has run.
func TestShards(t *testing.T) {
	st := memStore(t)
	in := serve(t, st)
	if s := want[Shards](in, 200, "GET", "/v1/shards/orders", nil); s.Count != 0 || len(s.Owners) != 0 {
		t.Errorf("%+v", s)
	}
	node, err := lease.New(st, lease.Config{Candidate: tenure.Candidate{ID: "a"}, Scope: store.Scope{"orders-*"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = shard.Run(ctx, node, shard.Config{Set: "orders", Count: 7, Settle: time.Second}, func(ctx context.Context, _ shard.Shard) error {
			<-ctx.Done()
			return ctx.Err()
		})
		_ = node.Close(context.WithoutCancel(ctx))
	}()
	defer func() { cancel(); <-done }()
	eventually(t, "a owns all shards", func() bool {
		s := want[Shards](in, 200, "GET", "/v1/shards/orders", nil)
		return s.Count == 7 && len(s.Vacant) == 0 && s.Imbalance == 100 && s.Moving == 0 && len(s.Owners) == 1 && s.Owners[0].NodeID == "a" && len(s.Owners[0].Shards) == 7
	})
	refused(in, 400, "bad_name", "GET", "/v1/shards/UPPER", nil)
}
