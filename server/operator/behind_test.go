package operator_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/store"
)

// A cached view that is out of date or wrong does not make Ask report that a leader has given
// up while it leads.
func TestAskOfOneBehind(t *testing.T) {
	s := newStore(t)
	first, v := lead(t, s, "a", "billing")
	if err := s.End(t.Context(), first.ID, store.Closed); err != nil {
		t.Fatal(err)
	}
	before := v
	before.State = tenure.Vacant
	session, v := lead(t, s, "a", "billing")
	ended := v
	ended.State = tenure.Vacant
	for name, look := range map[string]store.View{"the term before": before, "never led": {}, "what is not so": ended} {
		order := operator.Order{
			Verb: store.StepDown, Wait: 300 * time.Millisecond,
			Look: func(context.Context) (store.View, bool) { return look, true },
		}
		if got, err := s.Ask(t.Context(), v, order); err != nil || got.Outcome != operator.Waiting {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := s.Release(t.Context(), session.ID, "", store.Resigned, v.Record); err != nil {
		t.Fatal(err)
	}
	order := operator.Order{Verb: store.StepDown, Wait: time.Minute, Look: func(context.Context) (store.View, bool) { return ended, true }}
	if got, err := s.Ask(t.Context(), v, order); err != nil || got.Outcome != store.Done {
		t.Errorf("%+v, %v", got, err)
	}
}

// On a guarded engine a session whose TTL is outside a group's bounds does not get the group
// until the policy allows it.
func TestGuardedTTL(t *testing.T) {
	s := newStore(t)
	b := guard.Guard(s.Store, guard.Config{})
	session, err := b.Open(t.Context(), tenure.Candidate{ID: "a"}, 10*time.Second, store.OpenOptions{Scope: store.Scope{"billing"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		least, most int64
		granted     bool
	}{{20_000, 0, false}, {0, 5000, false}, {10_000, 10_000, true}} {
		_, err := s.Change(t.Context(), operator.Group("billing"), 0, func(values map[string]string) error {
			clear(values)
			for k, v := range (operator.GroupPolicy{MinTTLMS: tt.least, MaxTTLMS: tt.most}).Values(nil) {
				values[k] = v
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		name := strconv.FormatInt(tt.least, 10) + " to " + strconv.FormatInt(tt.most, 10)
		_, err = b.Acquire(t.Context(), session.ID, store.Record{Group: "billing"})
		if tt.granted != (err == nil) || err != nil && (!errors.Is(err, store.ErrInvalid) || !store.Definite(err)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
