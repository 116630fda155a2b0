package supervise

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// kind of a message between wrapper and keeper.
type kind string

const (
	// The wrapper's.
	doStart  kind = "start"  // Deadline, Grace, Token, Session, Deployment: run the command
	doExtend kind = "extend" // Deadline: a keep-alive was acknowledged
	doSignal kind = "signal" // Signal: for the command's group
	doStop   kind = "stop"   // the term is over: SIGTERM, and SIGKILL a grace later
	doKill   kind = "kill"   // at once
	doLeave  kind = "leave"  // there is nothing to keep, and this end looks after its files

	// The keeper's.
	isReady   kind = "ready"
	isStarted kind = "started" // PID
	isFailed  kind = "failed"  // Errno: the command could not be run
	isStill   kind = "still"   // Signal: the command was stopped by it
	isStuck   kind = "stuck"   // Left: processes that SIGKILL does not end
	isEnded   kind = "ended"   // Why, Status, Left: nothing of the tree is left
)

type message struct {
	Kind       kind          `json:"kind"`
	Deadline   clock.Instant `json:"deadline,omitempty"`
	Grace      time.Duration `json:"grace,omitempty"`
	Token      string        `json:"token,omitempty"`
	Session    string        `json:"session,omitempty"`
	Deployment string        `json:"deployment,omitempty"`
	Signal     int           `json:"signal,omitempty"`
	PID        int           `json:"pid,omitempty"`
	Errno      int           `json:"errno,omitempty"`
	Why        ending        `json:"why,omitempty"`
	Status     uint32        `json:"status,omitempty"` // as wait(2) has it
	Left       int           `json:"left,omitempty"`
}

// link is one end of the socket between wrapper and keeper. One goroutine sends.
type link struct {
	file *os.File
	rest []byte // of a message that was cut in two: it goes before the next
}

const (
	// obeyWithin is how long the other end has to do what is a matter of a moment, before
	// it counts as standing still.
	obeyWithin = time.Second
	maxMessage = 16 << 10
)

// send never waits: both ends have deadlines to look after. A message for somebody who
// stands still, and has hundreds unread, is dropped.
func (l *link) send(m message) error { return l.push(m, l.try) }

// insist waits until the message is sent or the other end is gone.
func (l *link) insist(m message) error {
	return l.push(m, func(b []byte) (int, error) {
		if err := l.file.SetWriteDeadline(time.Time{}); err != nil {
			return 0, err
		}
		return l.file.Write(b)
	})
}

// push keeps messages whole, also if only a part of one gets through.
func (l *link) push(m message, write func([]byte) (int, error)) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	before := len(l.rest)
	all := append(append(l.rest, line...), '\n')
	n, err := write(all)
	switch {
	case err == nil || n > before:
		l.rest = all[n:]
		return nil
	default:
		l.rest = all[n:before]
		return fmt.Errorf("keep: %s not sent: %w", m.Kind, err)
	}
}

// try writes what goes without waiting.
func (l *link) try(b []byte) (n int, err error) {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var werr error
	err = raw.Write(func(fd uintptr) bool {
		n, werr = writeNow(fd, b)
		return true
	})
	if err == nil {
		err = werr
	}
	return max(n, 0), err
}

// receive hands messages on until the other end is gone or makes no sense, and then
// closes the channel. It ends when the file is closed or the other end is.
func (l *link) receive(to chan<- message, done <-chan struct{}) {
	defer close(to)
	in := bufio.NewScanner(l.file)
	in.Buffer(nil, maxMessage)
	for in.Scan() {
		var m message
		if json.Unmarshal(in.Bytes(), &m) != nil {
			return
		}
		select {
		case to <- m:
		case <-done:
			return
		}
	}
}
