package chaos

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
)

// handOver asks the leader to resign, or to transfer the group to a follower. It has an
// effect when the node says that the term is over. Nothing is to be healed.
func handOver(f *Fleet, s Spec, targets []Target) (*procedure, error) {
	var ended api.Ended
	leader, to := targets[0], ""
	return &procedure{
		deposes: true,
		set: func(ctx context.Context) (string, clock.Instant, error) {
			path, what := "/resign", "asked to resign"
			if s.Kind == TransferLeader {
				to = s.To
				if to == "" {
					all, err := f.followers(ctx)
					if err != nil {
						return "", 0, err
					}
					to = all[s.Nth%len(all)].ID
				}
				path, what = "/transfer?to="+url.QueryEscape(to), "asked to hand over to "+to
			}
			begun := f.host.Now()
			const bound = 5 * time.Second
			err := f.Call(ctx, bound, http.MethodPost, leader.URL+path, ofTerm(leader), nil, &ended)
			var a *answerError
			switch {
			case errors.As(err, &a) && (a.status == http.StatusPreconditionFailed || a.status == http.StatusConflict || a.status == http.StatusServiceUnavailable):
				return "", 0, fmt.Errorf("%w: %s no longer leads with token %d; nothing was set", ErrChanged, leader.ID, leader.Token)
			case err != nil && to != "":
				err = fmt.Errorf("%w: %s does not hand over to %s: %w", ErrNoBite, leader.ID, to, err)
			}
			return what, begun, err
		},
		hold: func(context.Context, clock.Instant) error { return nil },
		felt: func(ctx context.Context, _ bool) string {
			st, err := f.status(ctx, leader.URL)
			if err != nil || ended.Token != leader.Token || st.Role == api.Leader && st.FenceToken == leader.Token {
				return ""
			}
			return fmt.Sprintf("%s says that its term with token %d is over", leader.ID, ended.Token)
		},
	}, nil
}

// ofTerm makes a call one about the leader's term only.
func ofTerm(leader Target) http.Header {
	return http.Header{"If-Match": {fmt.Sprintf("%q", fmt.Sprint(leader.Token))}}
}

// skewClock gives the leader's node a wrong clock. It has an effect when the node's clock
// is seen to be off by what was asked for, which needs some milliseconds.
func skewClock(f *Fleet, s Spec, targets []Target) (*procedure, error) {
	if s.Offset.Milliseconds() == 0 && s.PPM == 0 {
		return nil, fmt.Errorf("%w: by nothing: give an offset of a millisecond or more, or a rate", ErrCannot)
	}
	target := targets[0]
	var before time.Duration // how far the clock was off
	var begun clock.Instant
	return &procedure{
		healed: "has the host's clock again",
		set: func(ctx context.Context) (string, clock.Instant, error) {
			var err error
			if before, err = f.ClockAhead(ctx, target.URL); err != nil {
				return "", 0, err
			}
			begun = f.host.Now()
			err = f.SetClock(context.WithoutCancel(ctx), target.URL, s.Offset, s.PPM)
			return fmt.Sprintf("its clock is off by %v and runs at %+d ppm for %v", s.Offset, s.PPM, s.For), begun, err
		},
		heal: func(ctx context.Context) error {
			for begun > 0 && alive(target.PID) {
				err := f.SetClock(ctx, target.URL, 0, 0)
				if err == nil {
					break
				}
				if !pause(ctx, pollEvery) {
					return errors.Join(err, errors.New("its clock may be wrong still"))
				}
			}
			return nil
		},
		felt: func(ctx context.Context, healed bool) string {
			off, err := f.ClockAhead(ctx, target.URL)
			if err != nil || healed {
				return ""
			}
			moved := off - before
			want := s.Offset + time.Duration(float64(f.host.Now().Sub(begun))*float64(s.PPM)/1e6)
			const tell = 5 * time.Millisecond // calls take time, and milliseconds are rounded
			if math.Abs(float64(moved-want)) > math.Max(float64(tell), math.Abs(float64(want))/4) || want.Abs() < tell {
				return ""
			}
			return fmt.Sprintf("its clock is off by %v", moved.Round(time.Millisecond))
		},
	}, nil
}

// SetClock sets how far the clock of the node at a URL is off and how much faster it
// runs. Zero is the host's clock.
func (f *Fleet) SetClock(ctx context.Context, at string, offset time.Duration, ppm int64) error {
	if err := f.call(ctx, http.MethodPost, at+"/lab/clock", nil, labapi.Clock{SkewMS: offset.Milliseconds(), DriftPPM: ppm}, nil); err != nil {
		return fmt.Errorf("the clock of the node at %s: %w", at, err)
	}
	return nil
}

// ClockAhead is how far the wall clock of the node at a URL is ahead of this process's,
// as the quickest of a few calls tells.
func (f *Fleet) ClockAhead(ctx context.Context, at string) (ahead time.Duration, err error) {
	const tries = 5
	quickest := time.Hour
	for range tries {
		sent := time.Now()
		s, err := f.status(ctx, at)
		if err != nil {
			return 0, err
		}
		if took := time.Since(sent); took < quickest {
			quickest, ahead = took, time.UnixMilli(s.WallMS).Sub(sent.Add(took/2))
		}
	}
	return ahead, nil
}
