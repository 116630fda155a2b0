package keep

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
	doStart  kind = "start"  // Deadline, Grace, Token, Deployment: run the command
	doExtend kind = "extend" // Deadline: a keep-alive was acknowledged
	doSignal kind = "signal" // Signal: for the command's group
	doStop   kind = "stop"   // the term is over: SIGTERM, and SIGKILL a grace later
	doKill   kind = "kill"   // at once

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
}

const (
	// sendWithin bounds a send to somebody who stands still; what waits unread is a few
	// messages, and the socket holds hundreds.
	sendWithin = time.Second
	maxMessage = 16 << 10
)

func (l link) send(m message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := l.file.SetWriteDeadline(time.Now().Add(sendWithin)); err != nil {
		return err
	}
	if _, err = l.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("keep: %s not sent: %w", m.Kind, err)
	}
	return nil
}

// receive hands messages on until the other end is gone or makes no sense, and then
// closes the channel. It ends when the file is closed or the other end is.
func (l link) receive(to chan<- message, done <-chan struct{}) {
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
