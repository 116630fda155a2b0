//go:build unix

package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	ossignal "os/signal"
	"syscall"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/server/supervise/keeper"
)

const (
	// fallbackBefore is how long before the deadline the supervisor kills what the keeper
	// has not.
	fallbackBefore = keeper.Reserve * 3 / 4
	// killTime is how long a keeper may take to kill. After that it counts as hanging.
	killTime = 100 * time.Millisecond
	// reportTime is how long the supervisor looks for a report before it kills, in case it
	// was itself paused; up to reportRounds times if there is an unread message.
	reportTime   = 30 * time.Millisecond
	reportRounds = 4
)

var errKeeperHangs = errors.New("the keeper does not respond")

// supervisor runs the command for one term and tells the keeper about its deadline.
type supervisor struct {
	*runner
	term       *tenure.Term
	keeper     *keeper.Process
	tty        *os.File
	started    bool // the command has been started
	deadline   clock.Instant
	fallback   clock.Timer      // when the supervisor itself kills
	fallbackAt clock.Instant    // what the timer is set to
	signals    int              // how many signals have asked it to end
	stopTimer  <-chan time.Time // StopTimeout is over
	forced     bool             // the command is killed because of a signal
	lost       error
	fileFailed bool // an error of the fencing file was printed
}

// supervise runs the command for one term, and returns when no process of it is left.
func (r *runner) supervise(term *tenure.Term, k *keeper.Process) outcome {
	s := &supervisor{runner: r, term: term, keeper: k, fallback: r.clock.NewTimer(), fallbackAt: clock.Never}
	defer s.fallback.Stop()
	out := s.loop()
	out.interrupted = s.signals > 0
	return out
}

func (s *supervisor) loop() outcome {
	if !s.extend() {
		return s.termEnded(context.Cause(s.term.Context()))
	}
	s.acknowledged(s.deadline)
	stamp := s.term.Stamp()
	var onDeath *keeper.Close
	if session := s.session.Load(); session != nil && s.Settings != nil {
		onDeath = &keeper.Close{Session: session.ID, TTL: session.TTL, Settings: s.Settings}
	}
	if s.keeper.Send(keeper.Message{
		Kind: keeper.Start, Deadline: s.deadline, Grace: s.Grace, Token: stamp.Token.String(), Session: stamp.Session, Deployment: stamp.Deployment, Close: onDeath,
	}) != nil {
		return s.keeperGone()
	}
	defer s.takeTerminalBack()
	check := time.NewTicker(s.timing.Beat / 4) // whether a keep-alive was acknowledged
	defer check.Stop()
	ended := s.term.Context().Done()
	for {
		select {
		case m, ok := <-s.keeper.Messages:
			if !ok {
				return s.keeperGone()
			}
			if out, done := s.handle(m); done {
				return out
			}
		case <-check.C:
			s.extend()
		case <-ended:
			ended = nil
			s.stop(context.Cause(s.term.Context()))
		case sig := <-s.runner.signals:
			s.forward(sig)
		case <-s.stopTimer:
			s.kill(fmt.Sprintf("the command runs %v after the signal", s.StopTimeout))
		case <-s.fallback.C():
			if s.clock.Now() >= s.fallbackAt {
				return s.killAll()
			}
			s.fallback.Set(s.fallbackAt)
		}
	}
}

// killAll kills in place of a keeper that hangs, unless the keeper has reported while the
// supervisor was paused.
func (s *supervisor) killAll() outcome {
	late := time.NewTicker(reportTime)
	defer late.Stop()
	for waited := 0; waited == 0 || waited < reportRounds && s.keeper.Unread(); {
		select {
		case m, ok := <-s.keeper.Messages:
			if !ok {
				return s.keeperGone()
			}
			if out, done := s.handle(m); done {
				return out
			}
		case <-late.C:
			waited++
		}
	}
	ended := s.term.Check() != nil
	s.keeper.KillAll(s.sayStuck)
	switch {
	case s.forced && s.lost == nil:
		return outcome{code: 128 + int(syscall.SIGKILL)}
	case !ended:
		return s.termEnded(errKeeperHangs)
	}
	return s.termEnded(context.Cause(s.term.Context()))
}

// acknowledged records a deadline that the keeper has. The supervisor kills at the last
// acknowledged deadline, so a keeper that hangs ends the term although keep-alives go on.
func (s *supervisor) acknowledged(deadline clock.Instant) {
	if !s.forced && s.lost == nil {
		s.fallbackAt = deadline.Add(-fallbackBefore)
		s.fallback.Set(s.fallbackAt)
	}
}

// fallbackWithin makes the supervisor kill earlier, never later.
func (s *supervisor) fallbackWithin(d time.Duration) {
	s.fallbackAt = min(s.fallbackAt, s.clock.Now().Add(d))
	s.fallback.Set(s.fallbackAt)
}

// extend computes the deadline and sends it to the keeper if it is later. It reads the
// clock first, so the result is never too late.
func (s *supervisor) extend() bool {
	now := s.clock.Now()
	left := s.term.Remaining()
	if left <= 0 {
		return false
	}
	deadline := now.Add(left + s.timing.Grace)
	const noise = 5 * time.Millisecond // two computations of one deadline differ by less
	if deadline < s.deadline.Add(noise) {
		return true
	}
	s.deadline = deadline
	if s.started {
		_ = s.keeper.Send(keeper.Message{Kind: keeper.Extend, Deadline: deadline})
	}
	if err := s.file.Write(s.term.Stamp(), s.term.Candidate().ID, now, deadline); err != nil && !s.fileFailed {
		s.fileFailed = true
		s.Say("cannot write the fencing file, so the command does not see the newest deadline: %v", err)
	}
	return true
}

// stop stops the command after the term has ended. If the engine has reported that the
// grant is gone, there is no time for a grace period: another node may lead already.
func (s *supervisor) stop(cause error) {
	s.lost = cause
	order, within := keeper.Stop, s.Grace+killTime
	if errors.Is(cause, tenure.ErrLost) {
		order, within = keeper.Kill, killTime
	}
	_ = s.keeper.Send(keeper.Message{Kind: order})
	s.fallbackWithin(within)
	s.Say("leadership ended (%v): stopping the command", reason(cause))
}

// forward passes a signal to the command. The second one that asks for an end kills it.
func (s *supervisor) forward(sig os.Signal) {
	n, ok := sig.(syscall.Signal)
	if !ok {
		return
	}
	switch n {
	case syscall.SIGCONT:
		s.resume()
		return
	case syscall.SIGINT, syscall.SIGTERM:
		if s.signals++; s.signals > 1 {
			s.kill("second signal")
			return
		}
		if s.StopTimeout > 0 {
			s.stopTimer = time.After(s.StopTimeout)
		}
	}
	s.signalCommand(n)
}

// kill kills the command after a signal to this process.
func (s *supervisor) kill(why string) {
	s.forced = true
	_ = s.keeper.Send(keeper.Message{Kind: keeper.Kill})
	s.fallbackWithin(keeper.ResponseTime)
	s.Say("%s: killing the command", why)
}

func (s *supervisor) signalCommand(sig syscall.Signal) {
	_ = s.keeper.Send(keeper.Message{Kind: keeper.Signal, Signal: int(sig)})
}

// handle handles a message of the keeper.
func (s *supervisor) handle(m keeper.Message) (out outcome, done bool) {
	switch m.Kind {
	case keeper.Extended:
		s.acknowledged(m.Deadline)
	case keeper.Started:
		s.started = true
		s.keeper.SetGroup(m.PID)
		_ = s.keeper.Send(keeper.Message{Kind: keeper.Extend, Deadline: s.deadline}) // it may have changed meanwhile
		s.giveTerminal()
	case keeper.Failed:
		e := cannotRun(s.Args[0], syscall.Errno(m.Errno))
		return outcome{code: e.Code, err: e.Err}, true
	case keeper.Stopped:
		s.commandStopped(syscall.Signal(m.Signal))
	case keeper.Stuck:
		s.sayStuck(m.Left)
	case keeper.Ended:
		if m.Left > 0 && m.Reason == keeper.Exited {
			s.Say("the command left %d processes behind; they were stopped", m.Left)
		}
		if m.Reason == keeper.Exited || s.lost == nil && m.Reason == keeper.Forced {
			return outcome{code: exitCode(syscall.WaitStatus(m.Status))}, true
		}
		return s.termEnded(context.Cause(s.term.Context())), true
	}
	return outcome{}, false
}

func (s *supervisor) sayStuck(left int) {
	s.Say("SIGKILL does not end %d processes of the command; the group is kept until they are gone", left)
}

// termEnded is the outcome of a term that ended while the command ran.
func (s *supervisor) termEnded(cause error) outcome {
	if cause == nil {
		cause = tenure.ErrExpired // the keeper has read the clock before us
	}
	return outcome{code: CodeLost, lost: cause}
}

func (s *supervisor) keeperGone() outcome {
	s.keeper.KillAll(s.sayStuck)
	if s.lost != nil {
		return s.termEnded(s.lost)
	}
	return outcome{code: CodeFailed, err: errors.New("the keeper was killed, so the command and all processes that it started were killed too")}
}

func exitCode(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// giveTerminal puts the command into the foreground of the terminal, if we are there. The
// command may have asked for the terminal before.
func (s *supervisor) giveTerminal() {
	if s.tty == nil {
		s.tty = terminal(s.Stdin, s.Stdout, s.Stderr)
	}
	if s.tty == nil || foreground(s.tty) != syscall.Getpgrp() {
		return
	}
	ossignal.Ignore(syscall.SIGTTOU) // or taking it back would stop us
	setForeground(s.tty, s.keeper.Group)
	s.signalCommand(syscall.SIGCONT)
}

func (s *supervisor) takeTerminalBack() {
	if s.tty == nil {
		return
	}
	if foreground(s.tty) == s.keeper.Group {
		setForeground(s.tty, syscall.Getpgrp())
	}
	ossignal.Reset(syscall.SIGTTOU)
	closeTerminal(s.tty, s.Stdin, s.Stdout, s.Stderr)
}

// commandStopped stops this process and the others of its pipeline too, so that the shell
// gets its terminal back. No keep-alives are sent meanwhile: if the job is not resumed
// before its deadline, it is killed.
func (s *supervisor) commandStopped(sig syscall.Signal) {
	if s.tty == nil || sig == syscall.SIGSTOP {
		return
	}
	if foreground(s.tty) == s.keeper.Group {
		if sig != syscall.SIGTSTP {
			s.signalCommand(syscall.SIGCONT) // it asked for the terminal before it was given
			return
		}
		setForeground(s.tty, syscall.Getpgrp())
	}
	_ = syscall.Kill(0, syscall.SIGTSTP)
}

// resume continues after fg or bg.
func (s *supervisor) resume() {
	if s.started {
		s.giveTerminal()
	}
	s.signalCommand(syscall.SIGCONT)
}
