package zookeeper_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/zookeeper"
)

// A program that leads once. It needs a running ZooKeeper.
func Example() {
	if err := leadOnce(context.Background(), "zookeeper://127.0.0.1:2181/tenure"); err != nil {
		fmt.Println(err)
	}
}

func leadOnce(ctx context.Context, url string) error {
	cfg, err := zookeeper.Parse(url)
	if err != nil {
		return err
	}
	store, err := zookeeper.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer store.Close()
	return lease.Lead(ctx, store, "billing", "node-1", func(_ context.Context, term *tenure.Term) error {
		fmt.Println(term.Candidate().ID, "leads", term.Group())
		return tenure.ErrDone
	})
}

// The example leads.
func TestExample(t *testing.T) {
	t.Parallel()
	if err := leadOnce(room(t), servertest.ZooKeeper(t, 1)[0].URL()+"/tenure"); err != nil {
		t.Error(err)
	}
}
