package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
)

// Why a campaign was given up.
var (
	errNotInTime = errors.New("not elected in time")
	errDone      = errors.New("done by another")
)

// signalledError: somebody has stopped the wrapper while it waited.
type signalledError struct{ os.Signal }

func (e signalledError) Error() string { return "stopped by signal: " + e.String() }

type win struct {
	term *tenure.Term
	err  error
}

// campaign stands in line. Its error is a CodeError, or errDone.
func (r *runner) campaign(ctx context.Context) (*tenure.Term, error) {
	began := time.Now()
	select {
	case <-r.barred: // an earlier campaign's
	default:
	}
	if err := r.whoLeads(ctx); err != nil {
		return nil, err
	}
	cctx, give := context.WithCancelCause(ctx)
	defer give(nil)
	won := make(chan win, 1)
	go func() {
		term, err := r.elector.Campaign(cctx)
		won <- win{term, err}
	}()
	var late <-chan time.Time
	if wait := r.patience(); wait > 0 {
		late = time.After(max(0, wait-time.Since(began)))
	}
	look := time.NewTicker(r.timing.Beat)
	defer look.Stop()
	for {
		select {
		case w := <-won:
			return r.settle(ctx, cctx, w)
		case <-late:
			give(errNotInTime)
		case sig := <-r.signals:
			if asksForEnd(sig) {
				give(signalledError{sig})
			}
		case why := <-r.barred:
			give(why)
		case <-look.C:
			r.glance(cctx, give)
		}
	}
}

// patience is how long to stand in line. Whoever does not want to still needs a moment to
// take what is vacant.
func (r *runner) patience() time.Duration {
	if r.NoWait {
		return r.timing.TTL
	}
	return r.Wait
}

// bar ends a campaign that was not to wait.
func (r *runner) bar(n lease.Note) {
	if n.Kind == lease.NoteFailed && n.Call != lease.CallAcquire {
		return
	}
	if r.NoWait && (errors.Is(n.Err, lease.ErrBusy) || r.Denied != nil && r.Denied(n.Err)) {
		select {
		case r.barred <- &CodeError{CodeNotInTime, fmt.Errorf("nobody leads group %q, and %s may not: %w; nothing was run", r.Group, r.ID, n.Err)}:
		default:
		}
	}
}

// whoLeads tells whom we wait for, and does not wait for anybody if that was asked.
func (r *runner) whoLeads(ctx context.Context) error {
	v, err := r.read(ctx)
	switch {
	case err != nil:
		r.Say("who leads group %q cannot be read, and is tried again: %v", r.Group, err)
	case v.State == tenure.Led && r.NoWait:
		return r.ledBy(v)
	case v.State == tenure.Led:
		r.Say("waiting: group %q is led by %s", r.Group, holder(v))
	}
	return nil
}

func (r *runner) read(ctx context.Context) (lease.View, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timing.CallTimeout)
	defer cancel()
	return r.store.Read(ctx, r.Group)
}

func (r *runner) ledBy(v lease.View) error {
	return &CodeError{CodeNotInTime, fmt.Errorf("group %q is led by %s; leave out --no-wait to stand in line, or see `tenure watch %s`", r.Group, holder(v), r.Group)}
}

func holder(v lease.View) string {
	l := v.Leader()
	return fmt.Sprintf("%s (token %d, since %s)", l.Candidate.ID, l.Token, time.Since(l.Since).Round(time.Second))
}

// glance looks whether waiting still makes sense.
func (r *runner) glance(ctx context.Context, give context.CancelCauseFunc) {
	if r.once != nil {
		if done, err := r.once.look(ctx); err == nil && done {
			give(errDone)
		}
	}
	if r.NoWait {
		if v, err := r.read(ctx); err == nil && v.State == tenure.Led && v.Leader().Candidate.ID != r.ID {
			give(r.ledBy(v))
		}
	}
}

// settle turns the end of a campaign into a term or a reason.
func (r *runner) settle(ctx, cctx context.Context, w win) (*tenure.Term, error) {
	cause := context.Cause(cctx)
	var sig signalledError
	signalled := errors.As(cause, &sig)
	if w.err == nil && !signalled && ctx.Err() == nil {
		return w.term, nil // also if it came in the moment in which we gave up
	}
	if w.err == nil {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		_ = w.term.Resign(rctx)
	}
	var code *CodeError
	switch {
	case signalled:
		return nil, &CodeError{128 + number(sig.Signal), fmt.Errorf("stopped while waiting for group %q (%v): nothing was run", r.Group, sig.Signal)}
	case errors.As(cause, &code):
		return nil, code
	case errors.Is(cause, errDone):
		return nil, errDone
	case errors.Is(cause, errNotInTime):
		return nil, r.notInTime(ctx)
	case errors.Is(w.err, lease.ErrInvalid):
		return nil, &CodeError{CodeFailed, fmt.Errorf("group %q cannot be led with these settings: %w; nothing was run", r.Group, w.err)}
	default:
		return nil, &CodeError{CodeFailed, fmt.Errorf("the campaign for group %q ended: %w", r.Group, w.err)}
	}
}

func (r *runner) notInTime(ctx context.Context) error {
	who := "and who leads it cannot be read: is the store well? see `tenure doctor`"
	if v, err := r.read(ctx); err == nil && v.State == tenure.Led {
		who = "it is led by " + holder(v)
	} else if err == nil {
		who = "nobody leads it now"
		if why := r.refused.Load(); why != nil {
			who += fmt.Sprintf(" (the last try failed: %v)", *why)
		}
	}
	return &CodeError{CodeNotInTime, fmt.Errorf("group %q: not elected within %v, %s; nothing was run", r.Group, r.patience(), who)}
}
