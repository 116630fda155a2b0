package workerfence_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/filefence"
	"github.com/tenurehq/tenure/fence/workerfence"
)

// A worker has executed an order of the new leader. An order that the old leader sent earlier
// arrives late and is refused.
func Example() {
	path, _ := os.MkdirTemp("", "worker-")
	defer func() { _ = os.RemoveAll(path) }()
	mark, err := filefence.Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = mark.Close() }()

	worker := workerfence.New(mark, func(_ context.Context, s fence.Stamp, order []byte) error {
		fmt.Printf("%s, by token %d\n", order, s.Token)
		return nil
	})
	stamp := func(token fence.Token) fence.Stamp {
		return fence.Stamp{Deployment: "prod", Group: "jobs", Token: token}
	}
	fmt.Println(worker.Do(context.Background(), stamp(42), []byte("rebuild the index")))
	err = worker.Do(context.Background(), stamp(41), []byte("drop the index"))
	fmt.Println(errors.Is(err, fence.ErrRefused))
	// Output:
	// rebuild the index, by token 42
	// <nil>
	// true
}
