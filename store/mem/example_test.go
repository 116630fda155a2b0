package mem_test

import (
	"context"
	"fmt"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/mem"
)

// A store in memory, for a test or an example.
func Example() {
	store := mem.New(mem.Options{})
	defer store.Close()

	err := lease.Lead(context.Background(), store, "billing", "node-1", func(_ context.Context, term *tenure.Term) error {
		fmt.Println(term.Candidate().ID, "leads", term.Group())
		return tenure.ErrDone
	})
	fmt.Println(err)
	// Output:
	// node-1 leads billing
	// <nil>
}
