package experiment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/history"
	fleetclient "github.com/tenurehq/tenure/reference/client"
)

// Round is one round of a trial as the script saw it.
type Round struct {
	Kind string `json:"kind"`
	// Node led with Token before, and Successor with Next after.
	Node      string `json:"node"`
	Token     uint64 `json:"token"`
	Successor string `json:"successor"`
	Next      uint64 `json:"next"`
	// Other is the other node that was named: whom the group was to be handed to, or who
	// was cut off beside Node.
	Other string `json:"other,omitempty"`
	// Left is who left in order meanwhile.
	Left string `json:"left,omitempty"`
	// AskedAt is when a handover was asked for, on the host's clock.
	AskedAt int64 `json:"asked_at,omitempty"`
	// Refused: the ledger's list of refused writes has one of Node with Token, below
	// Mark, and it was not applied. Applied: it has, and it was.
	Refused bool   `json:"refused,omitempty"`
	Applied bool   `json:"applied,omitempty"`
	Mark    uint64 `json:"mark,omitempty"`
	// SteppedDown: the node did so by itself.
	SteppedDown bool `json:"stepped_down,omitempty"`
	// Begun and Healed are those of the fault or, where the script looks itself, of the part
	// in which it surely stood.
	Begun  clock.Instant `json:"begun,omitempty"`
	Healed clock.Instant `json:"healed,omitempty"`
	// Asked calls were made while the fault stood, and Answered of them were answered.
	Asked    int64 `json:"asked,omitempty"`
	Answered int64 `json:"answered,omitempty"`
	// Seen is what else the script saw, in words.
	Seen string `json:"seen,omitempty"`
}

// old is who led before the round's fault.
func (r Round) old() fence.Token { return fence.Token(r.Token) }

// followed notes who leads after the fault.
func (r *Round) followed(by fleetclient.Leader) { r.Successor, r.Next = by.ID, uint64(by.Token) }

// loop is the one round loop: a trial's script is what its rounds do. A round begins when
// every node answers and somebody leads, at a random moment of the beat, and ends when
// somebody leads again.
type loop struct {
	// what is told of every round.
	what string
	// busy: a round begins also if not every node answers.
	busy bool
	// wait, if given, is how long to wait before a round.
	wait func(s *trialRun, i int) time.Duration
	// lasts, if given, is how long rounds are repeated, beyond those of the trial.
	lasts time.Duration
	// do injects the fault and notes what it saw. The round has Node and Token already; a
	// round that gets no Kind is not kept.
	do func(ctx context.Context, s *trialRun, i int, r *Round) error
}

// errAgain: the round did not begin as it should have; it is done once more.
var errAgain = errors.New("once more")

func (l loop) play(ctx context.Context, s *trialRun) error {
	for i, end := 0, now().Add(l.lasts); i < s.trial.Rounds || now() < end; i++ {
		if !l.busy {
			if err := s.all(ctx); err != nil {
				return err
			}
		}
		wait := anyPlaceOfBeat
		if l.wait != nil {
			wait = l.wait
		}
		if err := s.hold(ctx, wait(s, i)); err != nil {
			return err
		}
		leader, err := s.leader(ctx, 0)
		if err != nil {
			return err
		}
		s.say("round %d of %d: %s; %s leads with token %d", i+1, max(s.trial.Rounds, i+1), l.what, leader.ID, leader.Token)
		r := Round{Node: leader.ID, Token: uint64(leader.Token)}
		switch err := l.do(ctx, s, i, &r); {
		case errors.Is(err, errAgain):
			i--
			continue
		case err != nil:
			return err
		}
		if r.Next == 0 {
			next, err := s.leader(ctx, 0)
			if err != nil {
				return err
			}
			r.followed(next)
		}
		s.say("%s leads with token %d", r.Successor, r.Next)
		if r.Kind != "" {
			s.rounds = append(s.rounds, r)
		}
		if i < s.trial.Rounds {
			s.round()
		}
	}
	return nil
}

// anyPlaceOfBeat waits up to one beat, so that faults do not hit at the same place of it.
func anyPlaceOfBeat(s *trialRun, _ int) time.Duration {
	return 500*time.Millisecond + time.Duration(s.rng.Int64N(int64(s.trial.TTL/4)))
}

// inject injects a fault, notes it in the round and writes it to the history.
func (s *trialRun) inject(ctx context.Context, r *Round, spec chaos.Spec) (chaos.Fault, error) {
	kind, _ := chaos.KindOf(spec.Kind)
	f, err := s.written(kind.Class, func() (chaos.Fault, error) { return s.chaos.Inject(ctx, spec) })
	if !kind.Named && f.Target != "" {
		r.Node, r.Token = f.Target, uint64(f.Token)
	}
	if r.Begun == 0 {
		r.Begun, r.Healed = f.Begun, f.Healed
	}
	return f, err
}

// written injects a fault and writes it to the history. If the leader changed meanwhile,
// as it may on a loaded machine, the fault is injected again.
func (s *trialRun) written(class string, inject func() (chaos.Fault, error)) (chaos.Fault, error) {
	const tries = 3
	for try := 1; ; try++ {
		f, err := inject()
		changed := errors.Is(err, chaos.ErrChanged)
		switch {
		case errors.Is(err, chaos.ErrNoEffect):
			return f, fmt.Errorf("%w: %w", ErrNotSeen, err)
		case err != nil && (!changed || try == tries):
			return f, err
		case changed:
			s.say("%v; once more", err)
		default:
			s.say("healed: %s of %s; %s", f.Name, f.Target, f.Evidence)
		}
		if f.Begun > 0 {
			x := inHistory(f, class)
			if changed {
				x.Missed = "the leader changed while it was being set"
			}
			if err := s.faults.Write(x); err != nil {
				return f, err
			}
		}
		if !changed {
			return f, nil
		}
	}
}

// inHistory is a fault in the words of a history.
func inHistory(f chaos.Fault, class string) history.Fault {
	return history.Fault{
		Name: f.Name, Class: class, Target: f.Target, Begun: f.Begun, Healed: f.Healed, Set: f.Set, Held: f.Held, Evidence: f.Evidence,
		Proof: history.Proof{Kind: string(f.Shown), PIDs: f.PIDs, Token: f.Token},
	}
}

// overtaken is a Spec.Until: it waits until a successor has sealed the ledger, notes it,
// and does what is to be done meanwhile.
func (s *trialRun) overtaken(r *Round, meanwhile func(ctx context.Context, next fleetclient.Leader) error) func(context.Context, chaos.Target) error {
	return func(ctx context.Context, at chaos.Target) error {
		r.Node, r.Token = at.ID, uint64(at.Token)
		next, err := s.sealed(ctx, at.Token)
		if err != nil {
			return err
		}
		r.followed(next)
		s.say("%s leads with token %d and has sealed the ledger; the fault on %s still stands", next.ID, next.Token, at.ID)
		if meanwhile == nil {
			return nil
		}
		return meanwhile(ctx, next)
	}
}

// stale waits for the old leader's late write and notes what the ledger did with it.
func (s *trialRun) stale(ctx context.Context, r *Round) error {
	late, err := s.refusal(ctx, r.Node, r.old())
	if err != nil {
		return err
	}
	r.Mark, r.Refused, r.Applied = uint64(late.CurrentToken), !late.Applied, late.Applied
	if late.Applied {
		s.say("the ledger, without its fence, took a write of %s with token %d although it has seen %d", late.Holder, late.Token, late.CurrentToken)
		return nil
	}
	s.say("the ledger refused a write of %s with token %d: it has seen %d", late.Holder, late.Token, late.CurrentToken)
	r.SteppedDown = true
	return s.down(ctx, r.Node, r.old())
}

// recovered waits until a write is taken again, and notes whose.
func (s *trialRun) recovered(ctx context.Context, r *Round) error {
	next, err := s.writes(ctx)
	r.followed(next)
	return err
}
