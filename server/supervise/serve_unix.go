//go:build unix

package supervise

import (
	"context"
	"errors"
	"os"
	ossignal "os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
)

// outcome is how a term went.
type outcome struct {
	code int
	// lost: the command was stopped because the term was over, for that cause.
	lost  error
	err   error // what went wrong in the wrapper, or with starting the command
	asked bool  // by a signal to end, so it is not begun again
}

const (
	// secondLine is how long before the deadline the wrapper kills what the keeper has not.
	secondLine = Reserve * 3 / 4
	// killWithin is how long a keeper may need to kill before it counts as standing still.
	killWithin = 100 * time.Millisecond
	// lastWord is how long the wrapper, before it kills, looks for a report that came while
	// it was itself paused; and lastWords how often if there is one that it has not read.
	lastWord  = 30 * time.Millisecond
	lastWords = 4
)

// service is one term: the command runs, and this process keeps its keeper informed.
type service struct {
	*runner
	term     *tenure.Term
	guard    *guard
	tty      *os.File
	deadline clock.Instant
	second   clock.Timer   // when the wrapper itself kills
	secondAt clock.Instant // what that is set to
	signals  int           // that ask for an end
	lost     error
	told     bool // why the end came has been said
}

// serve runs the command for one term, and returns when nothing of it is left.
func (r *runner) serve(term *tenure.Term, g *guard) outcome {
	s := &service{runner: r, term: term, guard: g, second: r.clock.NewTimer(), secondAt: clock.Never}
	defer s.second.Stop()
	out := s.serve()
	out.asked = s.signals > 0
	return out
}

func (s *service) serve() outcome {
	r, term, g := s.runner, s.term, s.guard
	if !s.extend() {
		return s.over(context.Cause(term.Context()))
	}
	stamp := term.Stamp(0)
	if s.guard.link.send(message{Kind: doStart, Deadline: s.deadline, Grace: r.Grace, Token: strconv.FormatUint(uint64(stamp.Token), 10), Session: stamp.Session, Deployment: stamp.Deployment}) != nil {
		return s.keeperGone()
	}
	defer s.takeBack()
	beat := time.NewTicker(r.timing.Beat / 2) // a note of a beat may be dropped
	defer beat.Stop()
	ends := term.Context().Done()
	for {
		select {
		case m, ok := <-g.says:
			if !ok {
				return s.keeperGone()
			}
			if out, over := s.heard(m); over {
				return out
			}
		case <-r.beats:
			s.extend()
		case <-beat.C:
			s.extend()
		case <-ends:
			ends = nil
			s.end(context.Cause(term.Context()))
		case sig := <-r.signals:
			s.pass(sig)
		case <-s.second.C():
			if r.clock.Now() >= s.secondAt {
				return s.sweep()
			}
			s.second.Set(s.secondAt)
		}
	}
}

// sweep kills in the keeper's place, which should have reported by now: it stands still.
// Unless we did, and it has.
func (s *service) sweep() outcome {
	late := time.NewTicker(lastWord)
	defer late.Stop()
	for waited := 0; waited == 0 || waited < lastWords && s.guard.link.unread(); {
		select {
		case m, ok := <-s.guard.says:
			if !ok {
				return s.keeperGone()
			}
			if out, over := s.heard(m); over {
				return out
			}
		case <-late.C:
			waited++
		}
	}
	s.guard.sweep(s.stuck)
	if s.signals > 1 && s.lost == nil {
		return outcome{code: 128 + int(syscall.SIGKILL)}
	}
	return s.over(context.Cause(s.term.Context()))
}

// sweepBy brings the second line forward, never back.
func (s *service) sweepBy(at clock.Instant) {
	s.secondAt = min(s.secondAt, at)
	s.second.Set(s.secondAt)
}

// extend works out the deadline anew and passes it on if it is later. The clock is read
// first, so the sum is never later than the truth.
func (s *service) extend() bool {
	now := s.clock.Now()
	left := s.term.Remaining()
	if left <= 0 {
		return false
	}
	deadline := now.Add(left + s.timing.Grace)
	const least = 5 * time.Millisecond // two readings of one deadline differ by less
	if deadline < s.deadline.Add(least) {
		return true
	}
	s.deadline = deadline
	if s.signals < 2 && s.lost == nil {
		s.secondAt = deadline.Add(-secondLine)
		s.second.Set(s.secondAt)
	}
	if s.guard.group != 0 {
		_ = s.guard.link.send(message{Kind: doExtend, Deadline: deadline})
	}
	if err := s.file.write(s.term, now, deadline); err != nil && !s.told {
		s.told = true
		s.Say("the token file cannot be written, and the command does not see the newest deadline: %v", err)
	}
	return true
}

// end is told why the term is over. Where the engine has said that the grant is gone there
// is no time left: another may lead already.
func (s *service) end(cause error) {
	s.lost = cause
	order, within := doStop, s.Grace+killWithin
	if errors.Is(cause, tenure.ErrLost) {
		order, within = doKill, killWithin
	}
	_ = s.guard.link.send(message{Kind: order})
	s.sweepBy(s.clock.Now().Add(within))
	s.Say("leadership is over (%v): the command is being stopped", reason(cause))
}

// pass hands a signal to the command. The second that asks for an end is an order.
func (s *service) pass(sig os.Signal) {
	n, ok := sig.(syscall.Signal)
	if !ok {
		return
	}
	switch n {
	case syscall.SIGCONT:
		s.resume()
		return
	case syscall.SIGINT, syscall.SIGTERM:
		s.signals++
	}
	if s.signals > 1 {
		_ = s.guard.link.send(message{Kind: doKill})
		s.sweepBy(s.clock.Now().Add(obeyWithin))
		s.Say("second signal: the command is being killed")
		return
	}
	_ = s.guard.link.send(message{Kind: doSignal, Signal: int(n)})
}

// heard takes in what the keeper says.
func (s *service) heard(m message) (outcome, bool) {
	switch m.Kind {
	case isStarted:
		s.guard.group = m.PID
		// What changed before there was a command to extend.
		_ = s.guard.link.send(message{Kind: doExtend, Deadline: s.deadline})
		s.handOver()
	case isFailed:
		return s.cannotRun(syscall.Errno(m.Errno)), true
	case isStill:
		s.still(syscall.Signal(m.Signal))
	case isStuck:
		s.stuck(m.Left)
	case isEnded:
		if m.Left > 0 && m.Why == exited {
			s.Say("the command has ended and left %d processes behind, which were stopped", m.Left)
		}
		if m.Why == exited || s.lost == nil && m.Why == forced {
			return outcome{code: exitCode(syscall.WaitStatus(m.Status))}, true
		}
		return s.over(context.Cause(s.term.Context())), true
	}
	return outcome{}, false
}

func (s *service) stuck(left int) {
	s.Say("%d processes of the command do not end by SIGKILL; the group is not given up while they are there", left)
}

// over is the outcome of a term that ended under the command.
func (s *service) over(cause error) outcome {
	if cause == nil {
		cause = tenure.ErrExpired // the keeper has looked at the clock before us
	}
	return outcome{code: CodeLost, lost: cause}
}

func (s *service) keeperGone() outcome {
	s.guard.sweep(s.stuck)
	if s.lost != nil {
		return s.over(s.lost)
	}
	return outcome{code: CodeFailed, err: errors.New("the keeper was ended by somebody: the command and all that it had started were killed")}
}

func exitCode(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// handOver gives the terminal to the command, if we are in its foreground. The command may
// have asked for it too early.
func (s *service) handOver() {
	if s.tty == nil {
		s.tty = terminal(s.Stdin, s.Stdout, s.Stderr)
	}
	if s.tty == nil || foreground(s.tty) != syscall.Getpgrp() {
		return
	}
	ossignal.Ignore(syscall.SIGTTOU) // or taking it back would stop us
	setForeground(s.tty, s.guard.group)
	_ = s.guard.link.send(message{Kind: doSignal, Signal: int(syscall.SIGCONT)})
}

func (s *service) takeBack() {
	if s.tty == nil {
		return
	}
	if foreground(s.tty) == s.guard.group {
		setForeground(s.tty, syscall.Getpgrp())
	}
	ossignal.Reset(syscall.SIGTTOU)
	closeTerminal(s.tty, s.Stdin, s.Stdout, s.Stderr)
}

// still: the command was stopped at the terminal. This process and whoever stands beside
// it in a pipe stop too, so that the shell gets its terminal back. No beats are sent
// meanwhile: a job that sleeps past its deadline is killed.
func (s *service) still(sig syscall.Signal) {
	if s.tty == nil || sig == syscall.SIGSTOP {
		return
	}
	if sig != syscall.SIGTSTP && foreground(s.tty) == s.guard.group {
		_ = s.guard.link.send(message{Kind: doSignal, Signal: int(syscall.SIGCONT)}) // it asked before it was given
		return
	}
	if foreground(s.tty) == s.guard.group {
		setForeground(s.tty, syscall.Getpgrp())
	}
	_ = syscall.Kill(0, syscall.SIGTSTP)
}

// resume: this process goes on, by fg or bg.
func (s *service) resume() {
	if s.guard.group != 0 {
		s.handOver()
	}
	_ = s.guard.link.send(message{Kind: doSignal, Signal: int(syscall.SIGCONT)})
}
