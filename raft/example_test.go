package raft_test

import (
	"context"
	"fmt"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/raft"
)

// One of three processes that elect among themselves. The others use the same Peers and
// their own ID and DataDir.
func ExampleOpen() {
	ctx := context.Background()
	node, err := raft.Open(raft.Config{
		Candidate: tenure.Candidate{ID: "node-1"},
		Group:     "billing",
		Peers: map[string]string{
			"node-1": "10.0.0.1:7400",
			"node-2": "10.0.0.2:7400",
			"node-3": "10.0.0.3:7400",
		},
		DataDir: "/var/lib/billing/raft",
		Timing:  raft.LAN(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = node.Close(context.WithoutCancel(ctx)) }()

	err = tenure.Lead(ctx, node, func(ctx context.Context, term *tenure.Term) error {
		fmt.Println("leading with token", term.Token())
		<-ctx.Done()
		return nil
	})
	fmt.Println(err)
}
