// Command first leads a group once, makes a fenced write, and ends. Everything is in
// memory.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/mem"
)

func main() {
	if err := lead(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func lead(ctx context.Context) error {
	var mark fence.Mark // a real sink keeps it beside the data, in one transaction with the write
	return lease.Lead(ctx, mem.New(mem.Options{}), "billing", "node-1", func(_ context.Context, term *tenure.Term) error {
		if err := term.Check(); err != nil {
			return err // this process no longer leads
		}
		next, err := mark.Admit(term.Stamp())
		if err != nil {
			return err // a newer leader was here: write nothing
		}
		mark = next
		fmt.Println("written by", term.Stamp())
		return tenure.ErrDone // finished for good; after anything else Lead campaigns again
	})
}
