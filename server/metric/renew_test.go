package metric

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tenurehq/tenure/lease"
)

// Every error has one of the reasons, also inside another error.
func TestRenewReason(t *testing.T) {
	for err, want := range map[error]string{
		lease.ErrSessionDead: NotLeader, lease.ErrDenied: Denied, lease.ErrUnauthenticated: Denied,
		context.DeadlineExceeded: BackendDown, errors.New("connection refused"): BackendDown,
		lease.ErrNewer: Other, lease.ErrRewound: Other,
	} {
		if got := RenewReason(fmt.Errorf("keep-alive: %w", err)); got != want || !slices.Contains(RenewReasons(), got) {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}
