package tenure

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// Trust is until when a process may believe what it holds. One Trust stands
// behind all terms of a session, so that a beat costs the same for one group
// and for ten thousand.
type Trust struct {
	clock clock.Clock
	until atomic.Int64

	mu     sync.Mutex
	risk   chan struct{} // closed: at risk; nil: nobody has asked
	risked bool
}

// NewTrust returns a Trust that has already ended.
func NewTrust(c clock.Clock) *Trust { return &Trust{clock: c} }

// Set says until when. Only engines call it.
func (t *Trust) Set(until clock.Instant) { t.until.Store(int64(until)) }

// SetAtRisk says whether trust is about to end for lack of keep-alives. Only engines
// call it.
func (t *Trust) SetAtRisk(risked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case risked == t.risked:
	case !risked:
		t.risk = nil
	case t.risk != nil:
		close(t.risk)
	}
	t.risked = risked
}

// AtRisk is what Term.AtRisk returns.
func (t *Trust) AtRisk() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.risk == nil {
		t.risk = make(chan struct{})
		if t.risked {
			close(t.risk)
		}
	}
	return t.risk
}

// Remaining is how long trust still lasts; zero or less means that it ended.
func (t *Trust) Remaining() time.Duration {
	return clock.Instant(t.until.Load()).Sub(t.clock.Now())
}

// Grant is the engine's side of a term. Users never see it.
type Grant interface {
	// Ended is told, once, that the term ended on the holder's side: by Resign,
	// TransferTo, or by a Check that found trust gone. It must not block.
	Ended(cause error)
	// Successor reports whether candidate could take over, ErrSuccessor if not.
	Successor(ctx context.Context, candidate string) error
	// Release gives the group up after work has returned, to the candidate or,
	// with "", to whoever is next in line.
	Release(ctx context.Context, candidate string) error
	// Suspect is called when a sink refused the seal of this term because it has
	// seen a token that is not below the term's. It asks the engine, linearizably,
	// whether the grant still stands. nil: it does not, another was granted since. If
	// it stands, the engine lost data: Suspect makes it grant nothing more, where it
	// can, and returns ErrDataLost. Any other error leaves the question open.
	Suspect(ctx context.Context, seen fence.Token) error
}

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
	trust      *Trust
	grant      Grant
	ctx        context.Context
	cancel     context.CancelCauseFunc
	ended      atomic.Bool
	own        atomic.Bool // the holder ended it; set before ctx ends

	mu         sync.Mutex
	supervised bool   // Lead runs the work and releases after it
	successor  string // whom TransferTo named
}

// TermConfig is what an engine knows when a term begins.
type TermConfig struct {
	Group      string
	Token      fence.Token
	Deployment string
	// Session is the digest of what the token was granted to (fence.SessionDigest):
	// no other grant has it, not even after the engine lost data.
	Session   string
	Candidate Candidate
	Trust     *Trust
	Grant     Grant
}

// NewTerm begins a term. The engine ends it with the returned function, which
// reports whether this call was the one that ended it.
func NewTerm(cfg TermConfig) (t *Term, end func(cause error) bool) {
	ctx, cancel := context.WithCancelCause(context.Background())
	t = &Term{
		group: cfg.Group, token: cfg.Token, deployment: cfg.Deployment, session: cfg.Session, candidate: cfg.Candidate,
		trust: cfg.Trust, grant: cfg.Grant, ctx: ctx, cancel: cancel,
	}
	return t, func(cause error) bool { return t.end(cause, false) }
}

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

// Stamp returns the stamp for a write: seq counts the writes to a strict sink
// from 1, and is 0 for the others.
func (t *Term) Stamp(seq uint64) fence.Stamp {
	return fence.Stamp{Deployment: t.deployment, Group: t.group, Token: t.token, Seq: seq, Session: t.session}
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
		if err := s.Seal(ctx, t.Stamp(0)); err != nil {
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
