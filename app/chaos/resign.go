package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tenurehq/tenure/app/fleet/api"
	"github.com/tenurehq/tenure/clock"
)

// ResignLeader asks the leader to resign. It has bitten when the node says that the term
// is over. Nothing is to be healed.
func (f *Fleet) ResignLeader(ctx context.Context) (Fault, error) {
	return f.strike(ctx, func(Leader) (work, error) {
		var ended api.Ended
		return work{
			name: "resign-leader", deposes: true, shown: Ended,
			set: func(ctx context.Context, target Leader) (string, clock.Instant, error) {
				begun := f.host.Now()
				header := http.Header{"If-Match": {fmt.Sprintf("%q", fmt.Sprint(target.Token))}}
				err := f.call(ctx, http.MethodPost, target.URL+"/resign", header, nil, &ended)
				var a *answerError
				if errors.As(err, &a) && (a.status == http.StatusPreconditionFailed || a.status == http.StatusConflict || a.status == http.StatusServiceUnavailable) {
					return "", 0, fmt.Errorf("%w: %s no longer leads with token %d; nothing was set", ErrChanged, target.ID, target.Token)
				}
				return "asked to resign", begun, err
			},
			hold: func(context.Context, Leader, clock.Instant) error { return nil },
			heal: func(context.Context) error { return nil },
			felt: func(ctx context.Context, target Leader, _ bool) string {
				s, err := f.status(ctx, target.URL)
				if err != nil || ended.Token != target.Token || s.Role == api.Leader && s.FenceToken == target.Token {
					return ""
				}
				return fmt.Sprintf("%s says that its term with token %d is over", target.ID, ended.Token)
			},
		}, nil
	})
}

// Churn kills one leader after the other, and returns the faults that bit, with what
// went wrong in others. It ends early when ctx does or nobody comes to lead.
func (f *Fleet) Churn(ctx context.Context, c Churn) ([]Fault, error) {
	c.Every, c.For = or(c.Every, 5*time.Second), or(c.For, time.Minute)
	var faults []Fault
	var wrong error
	failed := 0
	begun := f.host.Now()
	for at := begun; at.Sub(begun) < c.For; {
		fault, err := f.KillLeader(ctx)
		if stopped := cause(ctx); stopped != nil && fault.Evidence == "" {
			return faults, errors.Join(wrong, stopped)
		}
		if c.Each != nil {
			c.Each(fault, err)
		}
		switch {
		case errors.Is(err, ErrChanged): // the next is as good
		case errors.Is(err, ErrNoLeader), errors.Is(err, ErrFleet):
			return faults, errors.Join(wrong, err)
		case err != nil:
			const most = 10
			failed++
			if wrong = errors.Join(wrong, err); len(faults) == 0 || errors.Is(err, ErrNotHealed) || failed > most {
				return faults, wrong
			}
		default:
			faults = append(faults, fault)
		}
		at = max(at.Add(c.Every), f.host.Now())
		if !pause(ctx, at.Sub(f.host.Now())) {
			return faults, errors.Join(wrong, cause(ctx))
		}
	}
	return faults, wrong
}
