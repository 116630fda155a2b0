package lease_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// One node leads several groups with one session.
func ExampleNew() {
	st := mem.New(mem.Options{})
	defer st.Close()
	node, err := lease.New(st, lease.Config{
		Candidate: tenure.Candidate{ID: "node-1"},
		Scope:     store.Scope{"shard-*"},
		Log:       slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = node.Close(context.Background()) }()

	for _, shard := range []string{"shard-1", "shard-2"} {
		elector, err := node.Elector(shard)
		if err != nil {
			fmt.Println(err)
			return
		}
		term, err := elector.Campaign(context.Background())
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("leading", term.Group(), "with token", term.Token())
		_ = term.Resign(context.Background())
	}
	// Output:
	// leading shard-1 with token 1
	// leading shard-2 with token 1
}

// Explain computes what a timing means before it is used.
func ExampleTiming_Explain() {
	explained := lease.Default().Explain(lease.Assume{RoundTrip: 10 * time.Millisecond})
	fmt.Println("failover after a crash:", explained.Failover)
	// Output:
	// failover after a crash: 8.19s
}
