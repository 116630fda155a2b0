package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/chaos/process"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
)

// handOver asks the leader to resign, or to transfer the group to a follower. It has an
// effect when the node says that the term is over. There is nothing to heal.
func handOver(f *Fleet, s Spec, targets []inspect.Target) (*procedure, error) {
	var ended api.Ended
	leader, to := targets[0], s.To
	return &procedure{
		deposes: true,
		set: func(ctx context.Context) (string, clock.Instant, error) {
			path, what := "/resign", "asked to resign"
			if s.Kind == TransferLeader {
				if to == "" {
					all, err := f.Followers(ctx)
					if err != nil {
						return "", 0, err
					}
					to = all[s.Nth%len(all)].ID
				}
				path, what = "/transfer?to="+url.QueryEscape(to), "asked to hand over to "+to
			}
			begun := now()
			err := f.Call(ctx, 5*time.Second, http.MethodPost, leader.URL+path, ofTerm(leader), nil, &ended)
			over := []int{http.StatusPreconditionFailed, http.StatusConflict, http.StatusServiceUnavailable}
			if a, ok := errors.AsType[*inspect.AnswerError](err); ok && slices.Contains(over, a.Status) {
				return "", 0, inspect.NoLonger(leader)
			}
			if err != nil && s.Kind == TransferLeader {
				err = fmt.Errorf("%w: %s does not hand over to %s: %w", ErrNoEffect, leader.ID, to, err)
			}
			return what, begun, err
		},
		hold: func(context.Context, clock.Instant) error { return nil },
		felt: func(ctx context.Context, _ bool) string {
			st, err := f.Status(ctx, leader.URL)
			if err != nil || ended.Token != leader.Token || st.Role == api.Leader && st.FenceToken == leader.Token {
				return ""
			}
			return fmt.Sprintf("%s says that its term with token %d is over", leader.ID, ended.Token)
		},
	}, nil
}

// ofTerm limits a call to the leader's term.
func ofTerm(leader inspect.Target) http.Header {
	return http.Header{"If-Match": {fmt.Sprintf("%q", fmt.Sprint(leader.Token))}}
}

// skewClock gives the leader's node a wrong clock. It has an effect when the clock is seen
// to be off by what was asked for, which takes some milliseconds.
func skewClock(f *Fleet, s Spec, targets []inspect.Target) (*procedure, error) {
	if s.Offset.Milliseconds() == 0 && s.PPM == 0 {
		return nil, fmt.Errorf("%w: the clock would not be wrong; give an offset of at least a millisecond, or a rate", inspect.ErrCannot)
	}
	target := targets[0]
	var before time.Duration // the error of the clock
	var begun clock.Instant
	return &procedure{
		healed: "has the host's clock again",
		set: func(ctx context.Context) (_ string, _ clock.Instant, err error) {
			if before, err = f.ClockAhead(ctx, target.URL); err != nil {
				return "", 0, err
			}
			begun = now()
			err = f.SetClock(context.WithoutCancel(ctx), target.URL, s.Offset, s.PPM)
			return fmt.Sprintf("its clock is off by %v and runs at %+d ppm for %v", s.Offset, s.PPM, s.For), begun, err
		},
		heal: func(ctx context.Context) (err error) {
			if begun > 0 && !inspect.Poll(ctx, time.Hour, inspect.PollEvery, func() bool {
				err = f.SetClock(ctx, target.URL, 0, 0)
				return err == nil || !process.Alive(target.PID)
			}) {
				return fmt.Errorf("its clock may still be wrong: %w", err)
			}
			return nil
		},
		felt: func(ctx context.Context, healed bool) string {
			off, err := f.ClockAhead(ctx, target.URL)
			if err != nil || healed {
				return ""
			}
			moved := off - before
			want := s.Offset + time.Duration(float64(now().Sub(begun))*float64(s.PPM)/1e6)
			const least = 5 * time.Millisecond // calls take time, and milliseconds are rounded
			if (moved-want).Abs() > max(least, want.Abs()/4) || want.Abs() < least {
				return ""
			}
			return fmt.Sprintf("its clock is off by %v", moved.Round(time.Millisecond))
		},
	}, nil
}

// SetClock sets the error of the clock of the node at a URL, and how much faster it runs.
// Zero is the host's clock.
func (f *Fleet) SetClock(ctx context.Context, at string, offset time.Duration, ppm int64) error {
	if err := f.Call(ctx, inspect.CallTime, http.MethodPost, at+"/lab/clock", nil, labapi.Clock{SkewMS: offset.Milliseconds(), DriftPPM: ppm}, nil); err != nil {
		return fmt.Errorf("set the clock of the node at %s: %w", at, err)
	}
	return nil
}
