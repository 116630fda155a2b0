package metric

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tenurehq/tenure/store"
)

// Every error has one of the reasons, also inside another error.
func TestRenewReason(t *testing.T) {
	for err, want := range map[error]string{
		store.ErrSessionDead: NotLeader, store.ErrDenied: Denied, store.ErrUnauthenticated: Denied,
		context.DeadlineExceeded: BackendDown, errors.New("connection refused"): BackendDown,
		store.ErrNewer: Other, store.ErrRewound: Other,
	} {
		if got := RenewReason(fmt.Errorf("keep-alive: %w", err)); got != want || !slices.Contains(RenewReasons(), got) {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}
