package sites

import (
	"context"
	"errors"
	"testing"
	"time"
)

// replay runs a replay of a tenth of the length.
func replay(t *testing.T, fence bool) Result {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 4*time.Minute, errors.New("not within four minutes"))
	defer cancel()
	r, err := Replay{Cut: 4300 * time.Millisecond, Fence: fence, Say: func(s string) { t.Log(s) }}.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	if _, err := r.Figure(); err != nil {
		t.Error(err)
	}
	if r.West.Acknowledged < some || r.West.Lost > 0 {
		t.Errorf("the surviving site: %+v", r.West)
	}
	return r
}

// Without a fence the site that is cut off acknowledges writes that the surviving database does
// not have: the replay can fail.
func TestUnfenced(t *testing.T) {
	t.Parallel()
	if r := replay(t, false); r.East.Lost < some || r.East.Refused > 0 {
		t.Errorf("%+v", r.East)
	}
}

// With the fence no acknowledged write is lost: those during the cut are never acknowledged, and
// those after it are refused.
func TestFenced(t *testing.T) {
	t.Parallel()
	if r := replay(t, true); r.East.Lost > 0 || r.East.Unknown == 0 || r.East.Refused < some {
		t.Errorf("%+v", r.East)
	}
}
