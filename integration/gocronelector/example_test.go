package gocronelector_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/integration/gocronelector"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// A job runs on the leader only, and sees the token of its term.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := mem.New(mem.Options{}) // in production another engine
	defer s.Close()
	quiet := slog.New(slog.DiscardHandler)
	node, err := lease.New(s, lease.Config{Candidate: tenure.Candidate{ID: "node-1"}, Scope: store.Scope{"reports"}, Log: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	e, err := node.Elector("reports")
	if err != nil {
		fmt.Println(err)
		return
	}
	elector := gocronelector.New(e)
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		fmt.Println(err)
		return
	}
	done := make(chan fmt.Stringer, 1)
	_, err = scheduler.NewJob(gocron.DurationJob(10*time.Millisecond), elector.Task(func(_ context.Context, term *tenure.Term) error {
		select {
		case done <- term.Stamp().Token: // write with the stamp, to a fenced sink
		default:
		}
		return nil
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- elector.Run(ctx, tenure.WithLog(quiet)) }()
	scheduler.Start()
	fmt.Println("token", <-done)
	cancel()
	fmt.Println(<-ended)
	fmt.Println(scheduler.Shutdown())
	// Output:
	// token 1
	// context canceled
	// <nil>
}
