package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Callers keeps connections for calls, because a handshake costs more than a call.
type Callers struct {
	port *Port
	mu   sync.Mutex
	idle map[string][]net.Conn
}

// NewCallers returns Callers that use a port. Their connections end with the port.
func NewCallers(p *Port) *Callers { return &Callers{port: p, idle: map[string][]net.Conn{}} }

const (
	// MaxCall is the size limit of a question and of an answer, in bytes.
	MaxCall = 256 << 10

	maxIdle = 2 // connections per peer
)

// Call sends a question to the node at the address and waits for the answer until ctx ends,
// which must have a deadline. The node may get the question twice.
func (c *Callers) Call(ctx context.Context, id, address string, question, answer any) error {
	key := id + "@" + address
	for {
		conn := c.take(key)
		reused := conn != nil
		if !reused {
			var err error
			if conn, err = c.port.connect(ctx, id, address, forCall); err != nil {
				return err
			}
		}
		err := exchange(ctx, conn, question, answer)
		if err == nil {
			c.put(key, conn)
			return nil
		}
		_ = conn.Close()
		if !reused || ctx.Err() != nil {
			return fmt.Errorf("%s at %s: %w", id, address, err)
		}
	}
}

func exchange(ctx context.Context, conn net.Conn, question, answer any) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		return errors.New("a call needs a deadline")
	}
	_ = conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err := WriteFrame(conn, question)
	if err == nil {
		err = ReadFrame(conn, answer, MaxCall)
	}
	if !stop() && err == nil {
		// There is an answer, but the connection has a deadline in the past: do not reuse it.
		err = context.Cause(ctx)
	}
	return err
}

func (c *Callers) take(key string) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	idle := c.idle[key]
	if len(idle) == 0 {
		return nil
	}
	conn := idle[len(idle)-1]
	c.idle[key] = idle[:len(idle)-1]
	return conn
}

func (c *Callers) put(key string, conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle[key]) < maxIdle {
		c.idle[key] = append(c.idle[key], conn)
		return
	}
	_ = conn.Close()
}
