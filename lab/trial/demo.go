package trial

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// Demo shows why a leader's belief is not enough: the leader is stopped between its check
// and its write, another node takes over and seals the ledger, the first one continues with
// the write, and the ledger refuses it. Demo returns nil only if it saw all of that, and an
// ErrNotSeen otherwise.
func Demo(ctx context.Context, cfg lab.Config, line *lab.Timeline) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 90*time.Second, errors.New("the demonstration took more than 90 s"))
	defer cancel()
	cfg.TTL = 2 * time.Second // the shortest that etcd has
	cfg.Event = func(what string) { line.Say("%s", what) }
	s := &Run{Outcome: &Outcome{Trial: Trial{TTL: cfg.TTL, Rate: 200, Patience: time.Second, Pulse: cfg.Pulse}}, Config: Config{Say: line.Say}}
	if err := s.start(ctx, cfg); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.fleet.Stop()) }()
	line.Say("%s", lab.Inventory(s.File))
	historyDir := filepath.Join(s.File.Dir, HistoryDir)
	if s.calls, err = history.Create(historyDir, callsName); err != nil {
		return err
	}
	err = s.calls.Write(history.Run{Experiment: "demo", Group: s.File.Group, Checks: []string{"sequence", "linearizable", "ledger"}})
	if err == nil {
		err = s.underLoad(ctx, s.demo)
	}
	if err := errors.Join(err, s.calls.Close()); err != nil {
		return err
	}
	if err := history.WriteManifest(historyDir); err != nil {
		return err
	}
	r, err := check.Dir(ctx, historyDir, check.Options{DB: s.File.Ledger.DB})
	if err != nil {
		return err
	}
	for _, v := range r.Verdicts {
		if v.Result != verdict.Pass {
			return fmt.Errorf("%w: a sequence without reuse: %s", ErrNotSeen, v)
		}
	}
	line.Say("callers got %d answers, numbers %d to %d under %d tokens: all rise, none twice; longest time without an answer %.0f ms", r.Callers.Calls, r.Callers.First, r.Callers.Last, r.Callers.Tokens, r.Callers.SilenceMS)
	return nil
}

// demo is the demonstration itself, from a leader to its refused write.
func (s *Run) demo(ctx context.Context) error {
	const toRead = 2 * time.Second // for the reader to follow
	before, err := s.Nodes.Next(ctx, 1)
	if err != nil {
		return fmt.Errorf("%w: a first number: %w", ErrNotSeen, err)
	}
	s.Say("callers take numbers; %d was given under token %d", before.Last, before.Token)
	if err := s.Hold(ctx, toRead); err != nil {
		return err
	}
	var r Round
	overtaken := s.Overtaken(&r, func(ctx context.Context, next inspect.Target) error {
		// The client remembers the stopped node: let it look for the leader again.
		if _, err := s.Nodes.Leader(ctx); err != nil {
			return err
		}
		after, err := s.Nodes.Next(ctx, 1)
		if err != nil || after.First <= before.Last || after.Token < next.Token {
			return fmt.Errorf("%w: a larger number under token %d (%+v, %w)", ErrNotSeen, next.Token, after, err)
		}
		s.Say("callers take numbers again; %d was given under token %d", after.Last, after.Token)
		err = s.Hold(ctx, toRead)
		s.Say("%s continues (SIGCONT) and sends the write that it had checked, with token %d", r.Node, r.Token)
		return err
	})
	if _, err := s.Chaos.Inject(ctx, chaos.Spec{Kind: chaos.PauseLeader, Between: true, For: time.Millisecond, Until: func(ctx context.Context, at inspect.Target) error {
		s.Say("%s has checked that it leads, and is stopped before its write (pid %d, SIGSTOP)", at.ID, at.PID)
		return overtaken(ctx, at)
	}}); err != nil {
		return err
	}
	if err := s.Stale(ctx, &r); err != nil {
		return err
	}
	if r.Applied {
		return fmt.Errorf("%w: the refusal of the stale write: the ledger accepted it", ErrNotSeen)
	}
	s.Say("%s has stepped down", r.Node)
	if err := s.Hold(ctx, toRead); err != nil || !s.Pulse {
		return err
	}
	killed, err := s.Chaos.Inject(ctx, chaos.Spec{Kind: chaos.KillLeader})
	if err != nil {
		return err
	}
	next, err := s.Sealed(ctx, killed.Token)
	if err != nil {
		return err
	}
	details := ""
	_ = Await(ctx, "the record of the failover", func(ctx context.Context) bool { // only shown
		details = lab.FailoverDetails(ctx, s.Nodes, next.Token)
		return details != ""
	})
	s.Say("%s was killed (SIGKILL), and its keeper says so: %s leads with token %d%s", killed.Target, next.ID, next.Token, details)
	return s.Hold(ctx, toRead)
}
