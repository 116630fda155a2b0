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

// Config configures a Node. Candidate.ID and Scope are required; everything else
// has a default.
type Config struct {
	// Candidate is how this process is known to the others.
	Candidate tenure.Candidate
	// Scope lists the groups that this process may campaign for. All groups of one
	// scope share one session.
	Scope store.Scope
	// Fenced promises that every group of the scope writes only to fenced sinks.
	Fenced bool
	// Unguarded ignores the policies and cordons that operators set.
	Unguarded bool
	// Timing has the TTL and all other durations. The zero Timing is Default().
	Timing

	// Health, if set, is called once a Beat, with a timeout of one Beat. While it fails
	// or hangs, this process ends its terms (ErrUnhealthy) and does not campaign, so
	// that a healthy process can lead before the TTL has passed.
	Health func(context.Context) error

	// Exit, if set, ends the process if work overruns: if work has not returned when
	// trust ends, or a TTL after a resignation, the node calls Exit with OverrunExitCode.
	// Set it to os.Exit. It requires a Grace, so that work has time to stop. Without
	// Exit an overrun is only logged.
	Exit func(code int)

	// Keeper, if set, gets each session of this process, so that it can end the session as soon
	// as the process has died: see package pulse. Without it a crash is noticed after the TTL.
	Keeper Keeper

	// OnNote, if set, gets every note, for metrics. It is called from one goroutine.
	// If it is too slow, notes are dropped.
	OnNote func(Note)
	// Log gets the same notes. Default slog.Default().
	Log *slog.Logger
	// Clock measures trust. Default clock.System().
	Clock clock.Clock

	planted plant.Set // see Planted, of the planted build
}

// OverrunExitCode is the code that Exit is called with. It is EX_TEMPFAIL: a
// supervisor should start the process again.
const OverrunExitCode = 75

// Validate checks the configuration. Every error names the field, the value and
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

// Keeper ends the session of this process when the process dies. Its methods must not block.
type Keeper interface {
	// Keep is called with each new session of the instance. The instance is secret: it proves
	// that the session belongs to this process.
	Keep(s store.Session, instance string)
	// Forget is called when the instance has no session any more.
	Forget(instance string)
}
