package tenuretest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/tenuretest"
)

// A leader that was paused between its check and its write is refused by the sink. The
// package comment shows this test.
func TestZombie(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		a, b := k.Node("a"), k.Node("b")
		var sink tenuretest.Sink
		old, err := a.Elector("billing").Campaign(t.Context())
		if err != nil || old.Check() != nil {
			t.Fatal("a does not lead")
		}
		a.Pause() // after its check, before its write
		next, err := b.Elector("billing").Campaign(t.Context())
		if err != nil || next.Seal(t.Context(), &sink) != nil {
			t.Fatal("b does not lead")
		}
		err = sink.Write(t.Context(), old.Stamp(), "a wakes up and writes")
		if !errors.Is(err, fence.ErrRefused) {
			t.Fatalf("the stale write was not refused: %v", err)
		}
	})
}

// counter is a service as a user would write it: the leader counts, and writes its count.
type counter struct{ sink tenuretest.Sink }

func (c *counter) work(ctx context.Context, term *tenure.Term) error {
	for n := 0; ; n++ {
		if err := term.Check(); err != nil {
			return err
		}
		if err := c.sink.Write(ctx, term.Stamp(), n); err != nil {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

// A service continues when its leader crashes: another process leads with a larger token, and
// nothing is written in between.
func TestServiceGoesOn(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		var service counter
		lead := func(n *tenuretest.Node) {
			_ = tenure.Lead(t.Context(), n.Elector("counter"), service.work, tenure.WithSinks(&service.sink), tenure.WithLog(k.Log()))
		}
		a, b := k.Node("a"), k.Node("b")
		go lead(a)
		k.Advance(time.Minute)
		go lead(b)
		k.Settle()
		before := k.Leader("counter")
		if before.Candidate.ID != "a" {
			t.Fatalf("led by %q, want a", before.Candidate.ID)
		}
		a.Crash()
		k.Advance(time.Minute)
		after := k.Leader("counter")
		if after.Candidate.ID != "b" || after.Token <= before.Token {
			t.Fatalf("led by %q with token %d, want b with more than %d", after.Candidate.ID, after.Token, before.Token)
		}
		if r := service.sink.Refused(); len(r) > 0 {
			t.Errorf("refused: %v", r)
		}
		for i, w := range service.sink.Writes() {
			want := before.Token
			if i > 60 {
				want = after.Token
			}
			if w.Stamp.Token != want {
				t.Errorf("write %d has token %d, want %d", i, w.Stamp.Token, want)
			}
		}
	})
}
