package supervise

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
)

// scriptedStore answers keep-alives and acquires with the next error.
type scriptedStore struct {
	store.Store
	err error
}

func (s *scriptedStore) KeepAlive(context.Context, store.SessionID, ...string) (store.Beat, error) {
	return store.Beat{}, s.err
}

func (s *scriptedStore) Acquire(context.Context, store.SessionID, ...store.Record) ([]store.Record, error) {
	return nil, s.err
}

func (s *scriptedStore) Open(context.Context, tenure.Candidate, time.Duration, store.OpenOptions) (store.Session, error) {
	return store.Session{}, s.err
}

// A line is printed for each change of state, however often the store is called: when two
// calls in a row failed, when the store answers again, and when it refuses this candidate.
func TestObserver(t *testing.T) {
	down := &remote.CallError{Call: "keep-alive", Err: errors.New("connection refused")}
	busy := &remote.CallError{Call: "acquire", Err: &store.BarError{Code: "cordoned", Detail: "a is cordoned"}}
	s := &scriptedStore{}
	o := observe(s)
	beat := func() { _, _ = o.KeepAlive(t.Context(), "s") }
	acquire := func() { _, _ = o.Acquire(t.Context(), "s") }
	open := func() { _, _ = o.Open(t.Context(), tenure.Candidate{}, time.Second, store.OpenOptions{}) }
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for i, tt := range []struct {
		err  error
		do   func()
		want []string
	}{
		{nil, beat, nil},
		{down, beat, nil},
		{nil, beat, nil},
		{down, beat, nil},
		{down, func() { _, _ = o.KeepAlive(cancelled, "s") }, nil},
		{down, acquire, []string{"cannot reach the store, retrying: connection refused"}},
		{down, beat, nil},
		{store.ErrSessionDead, beat, []string{"reached the store again after 0s"}},
		{busy, acquire, []string{"waiting: a is cordoned"}},
		{busy, open, nil},
		{nil, beat, nil},
		{busy, acquire, nil},
		{&store.ConflictError{}, acquire, nil},
		{busy, acquire, []string{"waiting: a is cordoned"}},
	} {
		s.err = tt.err
		tt.do()
		var got []string
		for len(o.lines) > 0 {
			got = append(got, <-o.lines)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("step %d prints %q, want %q", i, got, tt.want)
		}
	}
	if o.refused() == nil || len(o.changed) != 1 {
		t.Errorf("refused: %v, signals: %d", o.refused(), len(o.changed))
	}
}
