package chaos

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/tenurehq/tenure/app/fleet/api"
	"github.com/tenurehq/tenure/clock"
)

// SkewLeader gives the leader's node a wrong clock. It has bitten when the node's clock
// is seen to be off by what was asked for, which needs some milliseconds.
func (f *Fleet) SkewLeader(ctx context.Context, s Skew) (Fault, error) {
	s.For = or(s.For, 2*f.ttl)
	if s.Offset.Milliseconds() == 0 && s.PPM == 0 {
		return Fault{Name: "skew-leader"}, fmt.Errorf("%w: by nothing: give an offset of a millisecond or more, or a rate", ErrCannot)
	}
	return f.strike(ctx, func(target Leader) (work, error) {
		var before time.Duration // how far the clock was off
		var begun clock.Instant
		touched := false
		return work{
			name: "skew-leader", shown: Measured, healed: "has the host's clock again",
			set: func(ctx context.Context, target Leader) (string, clock.Instant, error) {
				var err error
				if before, err = f.off(ctx, target); err != nil {
					return "", 0, err
				}
				touched, begun = true, f.host.Now()
				err = f.turn(context.WithoutCancel(ctx), target, api.LabClock{SkewMS: s.Offset.Milliseconds(), DriftPPM: s.PPM})
				return fmt.Sprintf("its clock is off by %v and runs at %+d ppm for %v", s.Offset, s.PPM, s.For), begun, err
			},
			hold: f.lasting(s.For, s.Until),
			heal: func(ctx context.Context) error {
				for touched && alive(target.PID) {
					err := f.turn(ctx, target, api.LabClock{})
					if err == nil {
						break
					}
					if !pause(ctx, look) {
						return errors.Join(err, errors.New("its clock may be wrong still"))
					}
				}
				return nil
			},
			felt: func(ctx context.Context, target Leader, healed bool) string {
				if healed {
					return ""
				}
				off, err := f.off(ctx, target)
				if err != nil {
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
	})
}

func (f *Fleet) turn(ctx context.Context, target Leader, to api.LabClock) error {
	if err := f.call(ctx, http.MethodPost, target.URL+"/lab/clock", nil, to, nil); err != nil {
		return fmt.Errorf("the clock of %s: %w", target.ID, err)
	}
	return nil
}

// off is how far a node's wall clock is ahead of this process's, as the quickest of a
// few calls tells.
func (f *Fleet) off(ctx context.Context, target Leader) (best time.Duration, err error) {
	const tries = 3
	quickest := time.Hour
	for range tries {
		sent := time.Now()
		s, err := f.status(ctx, target.URL)
		took := time.Since(sent)
		if err != nil {
			return 0, err
		}
		if took < quickest {
			quickest, best = took, time.UnixMilli(s.WallMS).Sub(sent.Add(took/2))
		}
	}
	return best, nil
}
