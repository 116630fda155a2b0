//go:build unix

package keep

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
	lost error
	err  error // what went wrong in the wrapper, or with starting the command
}

// secondLine is how long before the deadline the wrapper kills what the keeper has not.
const secondLine = Reserve * 3 / 4

// service is one term: the command runs, and this process keeps its keeper informed.
type service struct {
	*runner
	term     *tenure.Term
	guard    *guard
	tty      *os.File
	deadline clock.Instant
	second   clock.Timer // when the wrapper itself kills
	signals  int         // that ask for an end
	lost     error
	told     bool // why the end came has been said
}

// serve runs the command for one term, and returns when nothing of it is left.
func (r *runner) serve(term *tenure.Term, g *guard) outcome {
	s := &service{runner: r, term: term, guard: g, tty: terminal(r.Stdin), second: r.clock.NewTimer()}
	defer s.second.Stop()
	s.second.Set(clock.Never)
	if !s.extend() {
		return s.over(context.Cause(term.Context()))
	}
	stamp := term.Stamp(0)
	if s.guard.link.send(message{Kind: doStart, Deadline: s.deadline, Grace: r.Grace, Token: strconv.FormatUint(uint64(stamp.Token), 10), Deployment: stamp.Deployment}) != nil {
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
			if r.clock.Now() >= s.deadline.Add(-secondLine) || s.signals > 1 {
				// The keeper should have reported by now: it stands still.
				g.sweep()
				return s.over(context.Cause(term.Context()))
			}
			s.second.Set(s.deadline.Add(-secondLine))
		}
	}
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
	if s.signals < 2 {
		s.second.Set(deadline.Add(-secondLine))
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
	order := doStop
	if errors.Is(cause, tenure.ErrLost) {
		order = doKill
	}
	s.Say("leadership is over (%v): the command is being stopped", reason(cause))
	_ = s.guard.link.send(message{Kind: order})
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
		s.Say("second signal: the command is being killed")
		_ = s.guard.link.send(message{Kind: doKill})
		s.second.Set(s.clock.Now().Add(sendWithin))
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
		s.Say("%d processes of the command do not end by SIGKILL; the group is not given up while they are there", m.Left)
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

// over is the outcome of a term that ended under the command.
func (s *service) over(cause error) outcome {
	if cause == nil {
		cause = tenure.ErrExpired // the keeper has looked at the clock before us
	}
	return outcome{code: CodeLost, lost: cause}
}

func (s *service) keeperGone() outcome {
	s.guard.sweep()
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

// handOver gives the terminal to the command, which may have asked for it too early.
func (s *service) handOver() {
	if s.tty == nil {
		return
	}
	ossignal.Ignore(syscall.SIGTTOU) // or taking it back would stop us
	setForeground(s.tty, s.guard.group)
	_ = s.guard.link.send(message{Kind: doSignal, Signal: int(syscall.SIGCONT)})
}

func (s *service) takeBack() {
	if s.tty == nil || s.guard.group == 0 {
		return
	}
	if foreground(s.tty) == s.guard.group {
		setForeground(s.tty, syscall.Getpgrp())
	}
	ossignal.Reset(syscall.SIGTTOU)
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
	if s.tty != nil && s.guard.group != 0 && foreground(s.tty) == syscall.Getpgrp() {
		setForeground(s.tty, s.guard.group)
	}
	_ = s.guard.link.send(message{Kind: doSignal, Signal: int(syscall.SIGCONT)})
}
