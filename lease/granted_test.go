package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
)

// stingyStore grants half of the TTL that it is asked for.
type stingyStore struct{ store.Store }

func (s stingyStore) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	return s.Store.Open(ctx, c, ttl/2, o)
}

// Trust follows the TTL that was granted, not the one that was asked for: when the store
// goes away the term ends before the session does, from the first moment and after beats.
func TestTrustFollowsGrantedTTL(t *testing.T) {
	for name, beats := range map[string]time.Duration{"before the first beat": 0, "after beats": lease.Default().TTL} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				flaky := newFlakyStore(stingyStore{w.mem}, 1)
				term := w.win(w.node(flaky, "a"), "g")
				time.Sleep(beats)
				flaky.setDown(true)
				_, _ = w.ended(term)
				w.led("g", "a")
			})
		})
	}
}
