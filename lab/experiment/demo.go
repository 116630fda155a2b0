package experiment

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/history"
)

// Demo shows why a leader's belief is not enough: the leader is stopped between its
// check and its write, another takes over and seals the ledger, the first goes on with
// the write that it had checked, and is refused. It returns nil only if all of it was
// seen, and an ErrNotSeen otherwise.
func Demo(ctx context.Context, cfg lab.Config, line *lab.Timeline) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 90*time.Second, errors.New("the demonstration took more than 90 s"))
	defer cancel()
	cfg.TTL = 2 * time.Second // the shortest that etcd has
	cfg.Event = func(what string) { line.Say("%s", what) }
	s := &trialRun{trial: Trial{TTL: cfg.TTL, Rate: 200, Patience: time.Second}, say: line.Say}
	if s.fleet, err = lab.Start(ctx, cfg); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.fleet.Stop()) }()
	s.file = s.fleet.File()
	line.Say("%s", lab.Inventory(s.file))
	historyDir := filepath.Join(s.file.Dir, historyDir)
	if s.calls, err = history.Create(historyDir, callsName); err != nil {
		return err
	}
	err = s.calls.Write(history.Run{Experiment: "demo", Group: s.file.Group, Checks: []string{"sequence", "linearizable", "ledger"}})
	if err == nil {
		err = s.underLoad(ctx, s.demo)
	}
	if err := errors.Join(err, s.calls.Close()); err != nil {
		return err
	}
	if err := history.WriteManifest(historyDir); err != nil {
		return err
	}
	r, err := check.Dir(ctx, historyDir, check.Options{DB: s.file.Ledger.DB})
	if err != nil {
		return err
	}
	for _, v := range r.Verdicts {
		if v.Result != check.Pass {
			return fmt.Errorf("%w: a sequence without reuse: %s", ErrNotSeen, v)
		}
	}
	line.Say("%d callers' numbers, %d to %d under %d tokens: all rise, none twice; longest silence %.0f ms", r.Callers.Calls, r.Callers.First, r.Callers.Last, r.Callers.Tokens, r.Callers.SilenceMS)
	return nil
}

// demo is the demonstration itself, from a leader to its refused write.
func (s *trialRun) demo(ctx context.Context) error {
	const toRead = 2 * time.Second // for the reader, and for the callers
	before, err := s.nodes.Next(ctx, 1)
	if err != nil {
		return fmt.Errorf("%w: a first number: %w", ErrNotSeen, err)
	}
	s.say("callers take numbers; %d was given under token %d", before.Last, before.Token)
	if err := s.hold(ctx, toRead); err != nil {
		return err
	}
	old, err := s.chaos.Inject(ctx, chaos.Spec{Kind: chaos.PauseLeader, Between: true, For: time.Millisecond, Until: func(ctx context.Context, at chaos.Target) error {
		s.say("%s has checked that it leads, and stands still before its write (pid %d, SIGSTOP)", at.ID, at.PID)
		next, err := s.sealed(ctx, at.Token)
		if err != nil {
			return err
		}
		s.say("%s leads with token %d: %s was silent for too long", next.ID, next.Token, at.ID)
		s.say("the ledger is sealed: it has seen token %d and takes nothing below", next.Token)
		// The client remembers the node that stands still: it is to look again first.
		if _, err := s.nodes.Leader(ctx); err != nil {
			return err
		}
		after, err := s.nodes.Next(ctx, 1)
		if err != nil || after.First <= before.Last || after.Token < next.Token {
			return fmt.Errorf("%w: a larger number under token %d (%+v, %w)", ErrNotSeen, next.Token, after, err)
		}
		s.say("callers take numbers again; %d was given under token %d", after.Last, after.Token)
		err = s.hold(ctx, toRead)
		s.say("%s goes on (SIGCONT), and sends the write that it had checked, with token %d", at.ID, at.Token)
		return err
	}})
	if err != nil {
		return err
	}
	late, err := s.refusal(ctx, old.Target, old.Token)
	if err != nil {
		return err
	}
	s.say("%s", lab.Refusal(late))
	if late.Applied {
		return fmt.Errorf("%w: the refusal of the stale write: the ledger took it", ErrNotSeen)
	}
	if err := s.down(ctx, old.Target, old.Token); err != nil {
		return err
	}
	s.say("%s has stepped down", old.Target)
	return s.hold(ctx, toRead)
}
