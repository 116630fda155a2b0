package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// Config is what a process says about itself. Candidate.ID and Scope are
// required; everything else has a default.
type Config struct {
	// Candidate is how this process is known to the others.
	Candidate tenure.Candidate
	// Scope is what it stands for: the groups it may campaign for, and in whose
	// lines it stands. Everything in one scope shares one session.
	Scope store.Scope
	// Fenced promises that every group of the scope writes only to fenced sinks.
	Fenced bool
	// Unguarded ignores the policies and cordons that operators lay down: see Guard.
	Unguarded bool
	// Timing is how long everything takes. The zero Timing is Default().
	Timing

	// Health is asked once a beat, if set, with a beat to answer. While it fails
	// or hangs, this process ends its terms (ErrUnhealthy) and does not campaign:
	// a leader that knows it is unwell hands over before it would expire.
	Health func(context.Context) error

	// Exit opts in to a hard end: if work has not returned when trust ends (or, on
	// a resignation, a TTL later), Exit is called with OverrunExitCode. Set it to
	// os.Exit. It needs a Grace, or work would have no time to stop. Without it an
	// overrun is only reported.
	Exit func(code int)

	// Keeper is told of each session of this process, if set, so that it can end the session as
	// soon as the process has died: see package pulse. Without it a crash is noticed after the TTL.
	Keeper Keeper

	// OnNote is told what happens, for metrics. It is called from one goroutine,
	// and must keep up: notes that do not fit the queue are dropped.
	OnNote func(Note)
	// Log is for people. Default slog.Default().
	Log *slog.Logger
	// Clock measures trust. Default clock.System().
	Clock clock.Clock

	planted plant.Set // see Planted, of the planted build
}

// OverrunExitCode is what Exit is called with: the process was stopped because
// it no longer led (EX_TEMPFAIL: to run it again makes sense).
const OverrunExitCode = 75

// Validate refuses what cannot work. Every error names the field, the value and
// the rule.
func (c Config) Validate() error {
	errs := []error{store.CheckCandidate(c.Candidate), c.Scope.Validate(), c.Timing.Resolve().Validate()}
	if c.Exit != nil && c.Grace == 0 {
		errs = append(errs, &store.ArgumentError{Field: "grace", Value: c.Grace, Rule: "must be positive where Exit is set: work gets that long to stop before the process is ended"})
	}
	return errors.Join(errs...)
}

// fits checks the configuration against the limits of an engine.
func (c Config) fits(l store.Caps) error {
	switch {
	case l.Batch < 1:
		return &store.ArgumentError{Field: "the store's limit of groups in one acquire", Value: l.Batch, Rule: "must be at least 1"}
	case c.TTL < l.MinTTL:
		return &store.ArgumentError{Field: "ttl", Value: c.TTL, Rule: fmt.Sprintf("this store grants no less than %v", l.MinTTL)}
	case l.MaxTTL > 0 && c.TTL > l.MaxTTL:
		return &store.ArgumentError{Field: "ttl", Value: c.TTL, Rule: fmt.Sprintf("this store grants no more than %v", l.MaxTTL)}
	}
	return nil
}

// Keeper watches over this process. Its methods must not wait.
type Keeper interface {
	// Keep names the session that the instance has now. The instance is secret: it proves that
	// the session is this process's own.
	Keep(s store.Session, instance string)
	// Forget says that the instance has no session any more.
	Forget(instance string)
}
