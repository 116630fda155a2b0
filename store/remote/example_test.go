package remote_test

import (
	"context"
	"fmt"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/remote"
)

// A program that leads through the election service. It needs a running `tenure serve`.
func Example() {
	ctx := context.Background()
	store, err := remote.Open(ctx, remote.Config{URLs: []string{"http://127.0.0.1:7400"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	err = lease.Lead(ctx, store, "billing", "node-1", func(ctx context.Context, term *tenure.Term) error {
		fmt.Println("leading with token", term.Token())
		<-ctx.Done()
		return nil
	})
	fmt.Println(err)
}
