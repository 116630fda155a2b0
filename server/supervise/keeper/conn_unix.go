//go:build unix

package keeper

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/store"
)

// Kind of a message.
type Kind string

// The messages of the supervisor, then those of the keeper, with the fields that they use.
const (
	Start  Kind = "start"  // Deadline, Grace, Token, Session, Deployment, Close: run the command
	Extend Kind = "extend" // Deadline: a keep-alive was acknowledged
	Signal Kind = "signal" // Signal: for the command's process group
	Stop   Kind = "stop"   // the term has ended: SIGTERM, and SIGKILL after the grace period
	Kill   Kind = "kill"   // SIGKILL now
	leave  Kind = "leave"  // the supervisor goes on without this keeper

	ready    Kind = "ready"
	Started  Kind = "started"  // PID
	Failed   Kind = "failed"   // Errno: the keeper or the command cannot be run
	Extended Kind = "extended" // Deadline: the keeper acts on this deadline
	Stopped  Kind = "stopped"  // Signal: it stopped the command, as Ctrl-Z does
	Stuck    Kind = "stuck"    // Left: processes that SIGKILL does not end
	Ended    Kind = "ended"    // Reason, Status, Left: no process is left
)

// Message between supervisor and keeper.
type Message struct {
	Kind       Kind          `json:"kind"`
	Deadline   clock.Instant `json:"deadline,omitempty"`
	Grace      time.Duration `json:"grace,omitempty"`
	Token      string        `json:"token,omitempty"`
	Session    string        `json:"session,omitempty"`
	Deployment string        `json:"deployment,omitempty"`
	Close      *Close        `json:"close,omitempty"`
	Signal     int           `json:"signal,omitempty"`
	PID        int           `json:"pid,omitempty"`
	Errno      int           `json:"errno,omitempty"`
	Reason     Reason        `json:"reason,omitempty"`
	Status     uint32        `json:"status,omitempty"` // of wait(2)
	Left       int           `json:"left,omitempty"`   // processes that the command left behind
}

// Close says how the keeper closes the session of a supervisor that has died.
type Close struct {
	Session  store.SessionID `json:"session"`
	TTL      time.Duration   `json:"ttl"`
	Settings []byte          `json:"settings"` // for the function that Main gets
}

// conn is one end of the socket between supervisor and keeper. One goroutine sends.
type conn struct {
	file *os.File
	rest []byte // of a message that was sent in part; it goes before the next one
}

// ResponseTime is how long the other end may take for an answer that needs no waiting. After
// that it counts as hanging.
const ResponseTime = time.Second

const maxMessage = 16 << 10

// send never blocks, because both ends have deadlines to keep. If the other end hangs and
// the buffer is full, the message is dropped.
func (c *conn) send(m Message) error { return c.write(m, c.tryWrite) }

// sendBlocking waits until the message is sent or the other end is gone.
func (c *conn) sendBlocking(m Message) error {
	return c.write(m, func(b []byte) (int, error) {
		if err := c.file.SetWriteDeadline(time.Time{}); err != nil {
			return 0, err
		}
		return c.file.Write(b)
	})
}

// write keeps messages whole, even if only a part of one is written.
func (c *conn) write(m Message, write func([]byte) (int, error)) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	before := len(c.rest)
	all := append(append(c.rest, line...), '\n')
	n, err := write(all)
	if err == nil || n > before {
		c.rest = all[n:]
		return nil
	}
	c.rest = all[n:before]
	return fmt.Errorf("send %s: %w", m.Kind, err)
}

// tryWrite writes what the buffer takes.
func (c *conn) tryWrite(b []byte) (n int, err error) {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var werr error
	err = raw.Write(func(fd uintptr) bool {
		n, werr = syscall.Write(int(fd), b)
		return true
	})
	if err == nil {
		err = werr
	}
	return max(n, 0), err
}

// receive passes messages on until the file is closed, the other end is gone or sends
// something invalid; then it closes the channel.
func (c *conn) receive(to chan<- Message, done <-chan struct{}) {
	defer close(to)
	in := bufio.NewScanner(c.file)
	in.Buffer(nil, maxMessage)
	for in.Scan() {
		var m Message
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
