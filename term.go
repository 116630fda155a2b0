package tenure

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/termhook"
)

// Term is one uninterrupted leadership, as the leader sees it. It ends once and
// never reopens. Its methods are safe for concurrent use.
//
// I1: ended is set at most once, together with the context's cause.
// I2: Check never returns nil after ended is set, nor after trust has ended.
type Term struct {
	group      string
	token      fence.Token
	deployment string
	session    string
	candidate  Candidate
	trust      termhook.Trust
	grant      termhook.Grant
	ctx        context.Context
	cancel     context.CancelCauseFunc
	ended      atomic.Bool
	own        atomic.Bool // the holder ended it; set before ctx ends

	mu         sync.Mutex
	supervised bool   // Lead runs the work and releases after it
	successor  string // whom TransferTo named
}

// newTerm begins a term for package elector. The engine ends it with the returned
// function, which reports whether this call was the one that ended it.
func newTerm(cfg termhook.Config) (term any, end func(cause error) bool) {
	ctx, cancel := context.WithCancelCause(context.Background())
	candidate, _ := cfg.Candidate.(Candidate)
	t := &Term{
		group: cfg.Group, token: cfg.Token, deployment: cfg.Deployment, session: cfg.Session, candidate: candidate,
		trust: cfg.Trust, grant: cfg.Grant, ctx: ctx, cancel: cancel,
	}
	return t, func(cause error) bool { return t.end(cause, false) }
}

// Only package elector makes terms, so that users do not see how.
var _ = termhook.Set(newTerm)

func (t *Term) end(cause error, own bool) bool {
	if t.ended.Swap(true) {
		return false
	}
	t.own.Store(own)
	t.cancel(&EndedError{Group: t.group, Token: t.token, Cause: cause})
	return true
}

// Group returns the group that is led.
func (t *Term) Group() string { return t.group }

// Token returns the fencing token. Every write carries it to its sink.
func (t *Term) Token() fence.Token { return t.token }

// Candidate returns who leads: this process, as it introduced itself.
func (t *Term) Candidate() Candidate { return t.candidate }

// Stamp returns the stamp for a write. A write to a strict sink also has a number:
// Stamp().WithSeq(n).
func (t *Term) Stamp() fence.Stamp {
	return fence.Stamp{Deployment: t.deployment, Group: t.group, Token: t.token, Session: t.session}
}

// Context ends when the term does, with an EndedError as its cause. It is a
// courtesy and not a guard: a process that was paused runs on for a while before
// it is told. Call Check on the line before a write, and let the sink refuse the
// rest.
func (t *Term) Context() context.Context { return t.ctx }

// Remaining is how long the term may still be trusted if no further keep-alive
// is acknowledged. After the end it is zero.
func (t *Term) Remaining() time.Duration {
	if t.ended.Load() {
		return 0
	}
	return max(0, t.trust.Remaining())
}

// AtRisk returns a channel that is closed when no keep-alive has been acknowledged for so
// long that the term ends soon (lease.Timing: Misses × Beat), though it still may be
// trusted. It is the moment to finish a step and to begin no long one. When a keep-alive
// is acknowledged after all, the next call returns another channel, which is open. Engines
// without keep-alives never close it.
func (t *Term) AtRisk() <-chan struct{} { return t.trust.AtRisk() }

// Check reads the clock and returns nil while the term may be trusted, an
// EndedError after. It asks nobody, so it cannot be late by a lost message; what
// happens between the check and the write is the sink's to refuse.
func (t *Term) Check() error {
	if !t.ended.Load() && t.trust.Remaining() <= 0 {
		t.endHere(ErrExpired)
	}
	if t.ended.Load() {
		// The cause is set an instant after the flag: wait for it, it is coming.
		<-t.ctx.Done()
		return context.Cause(t.ctx)
	}
	return nil
}

// endHere ends the term from the holder's side and tells the engine.
func (t *Term) endHere(cause error) {
	if t.end(cause, true) {
		t.grant.Ended(cause)
	}
}

// Seal closes the sinks to every older leader. Lead does it for the shared sinks
// it is given; Seal is for those that are known only later. Calling it twice is
// harmless.
//
// A sink that has seen a larger token, or this one from another session, refuses.
// Usually a newer leader was granted the group and this one has not noticed. If the
// engine says that this term still leads, the engine lost data: the error is then an
// ErrDataLost too.
func (t *Term) Seal(ctx context.Context, sinks ...fence.Sealer) error {
	if ctx == nil {
		return errNoContext
	}
	for i, s := range sinks {
		if isNil(s) {
			return fmt.Errorf("tenure: sealing sink %d of %d for group %q: the sink is nil", i+1, len(sinks), t.group)
		}
		if err := t.Check(); err != nil {
			return err
		}
		if err := s.Seal(ctx, t.Stamp()); err != nil {
			err = fmt.Errorf("tenure: sealing sink %d of %d for group %q with token %d: %w", i+1, len(sinks), t.group, t.token, err)
			return errors.Join(t.suspect(ctx, err), err)
		}
	}
	return nil
}

// suspectAgain is the pause after a question to the engine that was not answered.
const suspectAgain = 100 * time.Millisecond

// suspect finds out whether a refused seal means that the engine lost data. It asks
// until it is answered: to give up and campaign again would raise the token.
func (t *Term) suspect(ctx context.Context, refusal error) error {
	var stale *fence.StaleError
	var clone *fence.CloneError
	var seen fence.Token
	switch {
	case errors.As(refusal, &stale):
		seen = stale.Mark.Token
	case errors.As(refusal, &clone):
		seen = clone.Mark.Token
	default:
		return nil
	}
	for ctx.Err() == nil && t.Check() == nil {
		err := t.grant.Suspect(ctx, max(seen, t.token))
		if err == nil || errors.Is(err, ErrDataLost) {
			return err
		}
		select {
		case <-time.After(suspectAgain):
		case <-ctx.Done():
		}
	}
	return nil
}

// isNil also finds a nil pointer in an interface.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	switch r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice, reflect.Chan, reflect.Interface:
		return r.IsNil()
	default:
		return false
	}
}

// Resign ends the term and gives the group up to whoever is next in line.
//
// Whoever got the term from Campaign calls it when the work has stopped; it
// returns when the engine has confirmed. Inside Lead it ends the term and
// returns at once: Lead gives the group up when work has returned.
//
// A term that ended by itself may be resigned too: it says that work has
// stopped. An error means that the release was not confirmed; the group is then
// free when the session expires.
func (t *Term) Resign(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	t.endHere(ErrResigned)
	return t.giveUp(ctx, "")
}

// TransferTo ends the term and hands the group to the named candidate, by the
// rules of Resign. If that candidate cannot take over, it returns ErrSuccessor
// and the term goes on. Should the candidate die in between, the group is left
// vacant and the error is ErrSuccessor as well: see Check for which it was. If the
// term ended meanwhile, by another transfer for example, the error is the EndedError:
// this call has not decided who is next.
func (t *Term) TransferTo(ctx context.Context, candidate string) error {
	if ctx == nil {
		return errNoContext
	}
	if candidate == t.candidate.ID {
		return fmt.Errorf("tenure: group %q is already led by %q: %w", t.group, candidate, ErrSuccessor)
	}
	if err := t.Check(); err != nil {
		return err
	}
	if err := t.grant.Successor(ctx, candidate); err != nil {
		return err
	}
	// Work may return, and Lead release, as soon as the term has ended.
	t.mu.Lock()
	ended := t.end(ErrTransferred, true)
	if ended {
		t.successor = candidate
	}
	t.mu.Unlock()
	if !ended {
		return t.Check()
	}
	t.grant.Ended(ErrTransferred)
	return t.giveUp(ctx, candidate)
}

func (t *Term) giveUp(ctx context.Context, successor string) error {
	t.mu.Lock()
	supervised := t.supervised
	t.mu.Unlock()
	if supervised {
		return nil
	}
	return t.grant.Release(ctx, successor)
}

// supervise makes Lead the one who releases. It must come before work sees the
// term.
func (t *Term) supervise() {
	t.mu.Lock()
	t.supervised = true
	t.mu.Unlock()
}

// release is Lead's: work has returned.
func (t *Term) release(ctx context.Context) error {
	t.endHere(ErrResigned)
	t.mu.Lock()
	successor := t.successor
	t.mu.Unlock()
	return t.grant.Release(ctx, successor)
}

// orderly reports whether an ended term says nothing bad about its work: it was
// lost, handed over, or somebody asked for its end.
func (t *Term) orderly() bool {
	err := context.Cause(t.ctx)
	return errors.Is(err, ErrExpired) || errors.Is(err, ErrLost) || errors.Is(err, ErrTransferred) || errors.Is(err, ErrResigned) && !t.own.Load()
}
