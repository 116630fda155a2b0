package trial

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/history"
)

// Loop is the round loop of every script. A round begins when every node answers and one
// leads, at a random moment of the beat, and ends when a node leads again.
type Loop struct {
	// What is reported for every round.
	What string
	// Busy: a round begins even if not every node answers.
	Busy bool
	// Wait, if set, is how long to wait before round i. Default: a random moment of the beat.
	Wait func(s *Run, i int) time.Duration
	// Lasts, if set, is how long rounds are repeated, beyond those of the trial.
	Lasts time.Duration
	// Round injects the fault of round i and notes what it saw. r has Node and Token of the
	// leader. A round without a Kind is not kept.
	Round func(ctx context.Context, s *Run, i int, r *Round) error
}

// ErrAgain: the round did not begin as it should; Loop repeats it.
var ErrAgain = errors.New("repeat the round")

// Play plays the rounds.
func (l Loop) Play(ctx context.Context, s *Run) error {
	for i, end := 0, now().Add(l.Lasts); i < s.Trial.Rounds || now() < end; i++ {
		if !l.Busy {
			if err := s.AllUp(ctx); err != nil {
				return err
			}
		}
		wait := 500*time.Millisecond + s.UpTo(s.TTL/4)
		if l.Wait != nil {
			wait = l.Wait(s, i)
		}
		if err := s.Hold(ctx, wait); err != nil {
			return err
		}
		leader, err := s.Leader(ctx, 0)
		if err != nil {
			return err
		}
		s.Say("round %d of %d: %s; %s leads with token %d", i+1, max(s.Trial.Rounds, i+1), l.What, leader.ID, leader.Token)
		r := Round{Node: leader.ID, Token: leader.Token}
		switch err := l.Round(ctx, s, i, &r); {
		case errors.Is(err, ErrAgain):
			i--
			continue
		case err != nil:
			return err
		}
		if r.Next == 0 {
			if err := s.Succeeded(ctx, &r, 0); err != nil {
				return err
			}
		}
		s.Say("%s leads with token %d", r.Successor, r.Next)
		if r.Kind != "" {
			s.Rounds = append(s.Rounds, r)
		}
		if i < s.Trial.Rounds {
			s.RoundDone()
		}
	}
	return nil
}

// UpTo returns a random duration below d.
func (s *Run) UpTo(d time.Duration) time.Duration { return time.Duration(s.Rand.Int64N(int64(d))) }

// Follow notes the leader after the fault.
func (r *Round) Follow(by inspect.Target) { r.Successor, r.Next = by.ID, by.Token }

// Succeeded waits for a leader with a token above the given one, and records it in the round.
func (s *Run) Succeeded(ctx context.Context, r *Round, above fence.Token) error {
	next, err := s.Leader(ctx, above)
	r.Follow(next)
	return err
}

// Phases waits until the new leader has recorded all phases of the failover, and notes them.
func (s *Run) Phases(ctx context.Context, r *Round) error {
	return Await(ctx, "the record of the failover with all its phases", func(ctx context.Context) bool {
		all, err := s.Nodes.Failovers(ctx)
		for _, f := range all.Items {
			const phases = 5
			if err == nil && f.Token == r.Next && len(f.Phases) == phases {
				r.Failover = &f
			}
		}
		return r.Failover != nil
	})
}

// Inject injects a fault, records it in the round and writes it to the history.
func (s *Run) Inject(ctx context.Context, r *Round, spec chaos.Spec) (chaos.Fault, error) {
	kind, _ := chaos.KindOf(spec.Kind)
	f, err := s.Record(kind.Class, func() (chaos.Fault, error) { return s.Chaos.Inject(ctx, spec) })
	if !kind.Named && f.Target != "" {
		r.Node, r.Token = f.Target, f.Token
	}
	if r.Begun == 0 {
		r.Begun, r.Healed = f.Begun, f.Healed
	}
	return f, err
}

// Record injects a fault and writes it to the history. If the leader changed meanwhile, as
// it may on a loaded machine, Record injects the fault again.
func (s *Run) Record(class string, inject func() (chaos.Fault, error)) (chaos.Fault, error) {
	const tries = 3
	for try := 1; ; try++ {
		f, err := inject()
		changed := errors.Is(err, inspect.ErrChanged)
		switch {
		case errors.Is(err, chaos.ErrNoEffect):
			return f, fmt.Errorf("%w: %w", ErrNotSeen, err)
		case err != nil && (!changed || try == tries):
			return f, err
		case changed:
			s.Say("%v; trying again", err)
		default:
			s.Say("healed: %s of %s; %s", f.Name, f.Target, f.Evidence)
		}
		if f.Begun > 0 {
			x := InHistory(f, class)
			if changed {
				x.Missed = "the leader changed while it was being set"
			}
			if err := s.Faults.Write(x); err != nil {
				return f, err
			}
		}
		if !changed {
			return f, nil
		}
	}
}

// InHistory converts a fault to a line of the history.
func InHistory(f chaos.Fault, class string) history.Fault {
	return history.Fault{
		Name: f.Name, Class: class, Target: f.Target, Begun: f.Begun, Healed: f.Healed, Set: f.Set, Held: f.Held, Evidence: f.Evidence,
		Proof: history.Proof{Kind: string(f.Shown), PIDs: f.PIDs, Token: f.Token},
	}
}

// Overtaken returns a chaos.Spec.Until: it waits until a successor has sealed the ledger,
// notes it in the round, and calls meanwhile.
func (s *Run) Overtaken(r *Round, meanwhile func(ctx context.Context, next inspect.Target) error) func(context.Context, inspect.Target) error {
	return func(ctx context.Context, at inspect.Target) error {
		r.Node, r.Token = at.ID, at.Token
		next, err := s.Sealed(ctx, at.Token)
		if err != nil {
			return err
		}
		r.Follow(next)
		s.Say("%s leads with token %d and has sealed the ledger; the fault on %s is still in effect", next.ID, next.Token, at.ID)
		return meanwhile(ctx, next)
	}
}

// Stale waits for the old leader's late write and records what the ledger did with it.
func (s *Run) Stale(ctx context.Context, r *Round) error {
	late, err := s.refusal(ctx, r.Node, r.Token)
	if err != nil {
		return err
	}
	s.Say("%s", lab.Refusal(late))
	r.Mark, r.Refused, r.Applied, r.SteppedDown = late.CurrentToken, !late.Applied, late.Applied, !late.Applied
	if late.Applied {
		return nil
	}
	return s.Down(ctx, r.Node, r.Token)
}
