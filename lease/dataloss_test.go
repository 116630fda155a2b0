package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/tenuretest"
)

// before is the stamp of a leader from before the store lost its records.
func before(token fence.Token) fence.Stamp {
	return fence.Stamp{Deployment: "mem", Group: "g", Token: token, Session: "before"}
}

// afterDataLoss lets three candidates lead on a store that has lost its records,
// while a sink has seen a token from before. It returns what must not happen.
func afterDataLoss(t *testing.T, token fence.Token, change ...func(*lease.Config)) (wrong []string) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		errorf := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
		var sink tenuretest.Sink
		if err := sink.Seal(t.Context(), before(token)); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var works atomic.Int64
		ends := make(chan error, 3)
		for _, id := range []string{"a", "b", "c"} {
			n := k.Node(id)
			go func() {
				ends <- tenure.Lead(ctx, n.Elector("g"), func(ctx context.Context, term *tenure.Term) error {
					works.Add(1)
					<-ctx.Done()
					return ctx.Err()
				}, tenure.WithSinks(&sink), tenure.WithLog(k.Log()))
			}()
		}
		k.Advance(time.Hour)
		if n := works.Load(); n > 0 {
			errorf("work began %d times although the sink has seen token %d", n, token)
		}
		if l := k.Leader("g"); l.Token > 1 {
			errorf("the candidates raised the token to %d", l.Token)
		}
		select {
		case err := <-ends:
			if !errors.Is(err, tenure.ErrDataLost) {
				errorf("Lead returned %v", err)
			}
		default:
			errorf("no Lead returned")
		}
		if m, err := k.Store().Meta(t.Context()); err != nil || !m.Rewound {
			errorf("the store does not say that it lost data: %+v, %v", m, err)
		}
		if len(wrong) > 0 {
			return
		}

		// When an operator has raised the epoch, the others go on by themselves.
		if _, err := k.Store().RaiseEpoch(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		k.Advance(time.Minute)
		if l := k.Leader("g"); l.State != tenure.Led || l.Token.Epoch() != 1 || works.Load() != 1 {
			errorf("after the raise: %+v, work began %d times", l, works.Load())
		}
		if err := sink.Write(t.Context(), before(token), "late"); !errors.Is(err, fence.ErrRefused) {
			errorf("a late write from before the loss: %v", err)
		}
	}, change...)
	return wrong
}

// A store that has lost its records grants tokens that were granted before. The first
// candidate that a sink refuses stops, and so does everybody else: nobody retries its
// way up to the token that the sink has seen. A first grant with an equal token is
// another session's, and refused as well.
func TestDataLoss(t *testing.T) {
	for _, token := range []fence.Token{5, 2, 1} {
		for _, wrong := range afterDataLoss(t, token) {
			t.Errorf("the sink has seen token %d: %s", token, wrong)
		}
	}
}

// A seal that is refused because another leads by now is no loss of data.
func TestSupersededSeal(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		a, b := k.Node("a"), k.Node("b")
		var sink tenuretest.Sink
		old, err := a.Elector("g").Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		late := func(s fence.Stamp) error {
			// The session of a is gone, and b has begun, before the sink sees the seal.
			a.Expire()
			next, err := b.Elector("g").Campaign(t.Context())
			if err != nil {
				return err
			}
			if err := next.Seal(t.Context(), &sink); err != nil {
				return err
			}
			return sink.Seal(t.Context(), s)
		}
		err = old.Seal(t.Context(), sealerFunc(late))
		var stale *fence.StaleError
		if !errors.As(err, &stale) || errors.Is(err, tenure.ErrDataLost) {
			t.Errorf("sealed: %v", err)
		}
		if m, err := k.Store().Meta(t.Context()); err != nil || m.Rewound {
			t.Errorf("%+v, %v", m, err)
		}
	})
}

type sealerFunc func(fence.Stamp) error

func (f sealerFunc) Seal(_ context.Context, s fence.Stamp) error { return f(s) }
