package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// Why a campaign was given up.
var (
	errNotInTime = errors.New("not elected in time")
	errDone      = errors.New("done by another node")
)

// signalError: a signal asked this process to end while no command ran.
type signalError struct{ os.Signal }

func (e signalError) Error() string { return "stopped by signal: " + e.String() }

// campaign waits for leadership. Its error is a CodeError, or errDone.
func (r *runner) campaign(ctx context.Context) (*tenure.Term, error) {
	began := time.Now()
	if err := r.showLeader(ctx); err != nil {
		return nil, err
	}
	cctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var term *tenure.Term
	done := make(chan error, 1)
	go func() {
		var err error
		term, err = r.elector.Campaign(cctx)
		done <- err
	}()
	var late <-chan time.Time
	if wait := r.maxWait(); wait > 0 {
		late = time.After(max(0, wait-time.Since(began)))
	}
	check := time.NewTicker(r.timing.Beat)
	defer check.Stop()
	for {
		select {
		case err := <-done:
			return r.result(ctx, term, err, context.Cause(cctx))
		case <-late:
			giveUp(errNotInTime)
		case sig := <-r.signals:
			if asksForEnd(sig) {
				giveUp(signalError{sig})
			}
		case <-r.store.changed:
			if err := r.pointless(cctx); err != nil {
				giveUp(err)
			}
		case <-check.C:
			if err := r.pointless(cctx); err != nil {
				giveUp(err)
			}
		}
	}
}

// maxWait is how long to wait for leadership; 0: without limit. With NoWait one TTL is
// enough to take a vacant group.
func (r *runner) maxWait() time.Duration {
	if r.NoWait {
		return r.timing.TTL
	}
	return r.Wait
}

// showLeader says who leads, unless there is nothing to wait for. If the store does not
// answer, the campaign retries.
func (r *runner) showLeader(ctx context.Context) error {
	if err := r.pointless(ctx); err != nil {
		return err
	}
	if v, err := r.read(ctx); err == nil && v.State == tenure.Led {
		r.Say("waiting: group %q is led by %s", r.Group, holder(v))
	}
	return nil
}

func (r *runner) read(ctx context.Context) (store.View, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timing.CallTimeout)
	defer cancel()
	return r.store.Read(ctx, r.Group)
}

func (r *runner) ledBy(v store.View) error {
	return &CodeError{CodeNotInTime, fmt.Errorf("group %q is led by %s; omit --no-wait to wait, or see `tenure watch %s`", r.Group, holder(v), r.Group)}
}

func holder(v store.View) string {
	l := v.Leader()
	return fmt.Sprintf("%s (token %d, for %s)", l.Candidate.ID, l.Token, time.Since(l.Since).Round(time.Second))
}

// pointless returns a reason not to wait any longer.
func (r *runner) pointless(ctx context.Context) error {
	if r.once != nil {
		if done, err := r.once.read(ctx); err == nil && done {
			return errDone
		}
	}
	if why := r.store.refused(); r.NoWait && why != nil {
		return &CodeError{CodeNotInTime, fmt.Errorf("group %q has no leader, and %s may not lead it: %w; the command was not run", r.Group, r.ID, why)}
	}
	if r.NoWait {
		if v, err := r.read(ctx); err == nil && v.State == tenure.Led && v.Leader().Candidate.ID != r.ID {
			return r.ledBy(v)
		}
	}
	return nil
}

// result returns the term of a campaign, or why it ended without one.
func (r *runner) result(ctx context.Context, term *tenure.Term, err, cause error) (*tenure.Term, error) {
	var sig signalError
	signalled := errors.As(cause, &sig)
	if err == nil && !signalled && ctx.Err() == nil {
		return term, nil // even if it was won just when we gave up
	}
	if err == nil {
		_ = resign(ctx, term)
	}
	var code *CodeError
	switch {
	case signalled:
		return nil, &CodeError{128 + number(sig.Signal), fmt.Errorf("stopped while waiting for group %q (%v); the command was not run", r.Group, sig.Signal)}
	case errors.As(cause, &code):
		return nil, code
	case errors.Is(cause, errDone):
		return nil, errDone
	case errors.Is(cause, errNotInTime):
		return nil, r.notInTime(ctx)
	case errors.Is(err, store.ErrInvalid):
		return nil, &CodeError{CodeFailed, fmt.Errorf("group %q cannot be led with these settings: %w; the command was not run", r.Group, plain(err))}
	default:
		return nil, &CodeError{CodeFailed, fmt.Errorf("the campaign for group %q ended: %w", r.Group, plain(err))}
	}
}

func (r *runner) notInTime(ctx context.Context) error {
	state := "its leader cannot be read; see `tenure doctor`"
	if v, err := r.read(ctx); err == nil && v.State == tenure.Led {
		state = "it is led by " + holder(v)
	} else if err == nil {
		state = "it has no leader"
		if why := r.store.refused(); why != nil {
			state += fmt.Sprintf(": %v", why)
		}
	}
	return &CodeError{CodeNotInTime, fmt.Errorf("group %q: not elected within %v; %s; the command was not run", r.Group, r.maxWait().Round(time.Millisecond), state)}
}
