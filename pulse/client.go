package pulse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/tenurehq/tenure/store"
)

// Client registers the sessions of this process with a keeper. It is a lease.Keeper.
type Client struct {
	path    string
	log     *slog.Logger
	cancel  context.CancelFunc
	done    chan struct{}
	changed chan struct{} // buffered by one

	mu    sync.Mutex
	want  map[string]store.Session   // by instance
	kept  map[string]store.SessionID // by instance: confirmed by the keeper
	err   error                      // why the keeper has not confirmed everything
	since time.Time                  // when err was set after nil
	said  string                     // the err that was logged last
	heard chan struct{}              // closed when kept or err change
}

// Dial registers with the keeper that listens on path, such as `tenure keeper`. It returns at once,
// and connects again whenever the keeper was gone. A nil log is slog.Default().
func Dial(path string, log *slog.Logger) *Client {
	if log == nil {
		log = slog.Default()
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Client{
		path: path, log: log, cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}, 1),
		want: map[string]store.Session{}, kept: map[string]store.SessionID{}, heard: make(chan struct{}),
	}
	go c.run(ctx)
	return c
}

// Keep asks the keeper to watch over a session of this process, in place of an earlier one of the
// same instance. It does not wait.
func (c *Client) Keep(s store.Session, instance string) {
	c.mu.Lock()
	c.want[instance] = s
	c.mu.Unlock()
	c.poke()
}

// Forget tells the keeper that the instance has no session any more. It does not wait.
func (c *Client) Forget(instance string) {
	c.mu.Lock()
	delete(c.want, instance)
	c.mu.Unlock()
	c.poke()
}

func (c *Client) poke() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Wait returns nil when the keeper has confirmed every session of Keep. When ctx ends first, it
// returns the reason.
func (c *Client) Wait(ctx context.Context) error {
	for {
		c.mu.Lock()
		all, why, heard := true, c.err, c.heard
		for instance, s := range c.want {
			all = all && c.kept[instance] == s.ID
		}
		c.mu.Unlock()
		if all {
			return nil
		}
		select {
		case <-heard:
		case <-ctx.Done():
			return errors.Join(why, context.Cause(ctx))
		}
	}
}

// Close ends the connection. Sessions that are still registered stay with the keeper.
func (c *Client) Close() error {
	c.cancel()
	<-c.done
	return nil
}

// run keeps a connection while there is something to register.
func (c *Client) run(ctx context.Context) {
	defer close(c.done)
	const first, most = 10 * time.Millisecond, time.Minute
	pause := first
	for ctx.Err() == nil {
		if c.idle() {
			select {
			case <-c.changed:
			case <-ctx.Done():
			}
			continue
		}
		since, err := c.talk(ctx)
		c.mu.Lock()
		for instance := range c.kept {
			c.kept[instance] = "" // to be registered again, or forgotten
		}
		if len(c.want) == 0 {
			clear(c.kept)
		}
		c.mu.Unlock()
		c.tell(err)
		if !since.IsZero() && time.Since(since) > time.Second {
			pause = first
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, most)
		case <-c.changed:
			pause = first
		case <-ctx.Done():
		}
	}
}

func (c *Client) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.want) == 0 && len(c.kept) == 0
}

// tell stores the state of the registration. It logs a new error only after two seconds: a keeper
// that was just started does not listen yet.
func (c *Client) tell(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.since = time.Now()
	}
	c.err = err
	close(c.heard)
	c.heard = make(chan struct{})
	switch {
	case err == nil && c.said != "":
		c.said = ""
		c.log.Info("a keeper watches over this process")
	case err != nil && err.Error() != c.said && time.Since(c.since) > 2*time.Second:
		c.said = err.Error()
		c.log.Warn("no keeper watches over this process, so the TTL applies if it crashes", "error", err)
	}
}

// talk registers over one connection until it ends. It returns since when everything was registered.
func (c *Client) talk(ctx context.Context) (since time.Time, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := (&net.Dialer{Timeout: callTimeout}).DialContext(ctx, "unixpacket", c.path)
	if err != nil {
		return since, fmt.Errorf("pulse: %w", err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := trusted(conn, c.path); err != nil {
		return since, err
	}
	var h hello
	if err := receive(conn, &h, time.Now().Add(callTimeout)); err != nil {
		return since, err
	}
	if h.Error != "" {
		return since, fmt.Errorf("pulse: the keeper refused: %s", h.Error)
	}
	gone := make(chan error, 1)
	replies := make(chan reply)
	go func() {
		for {
			var r reply
			if err := receive(conn, &r, time.Time{}); err != nil {
				gone <- err
				return
			}
			select {
			case replies <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		q, more := c.next(h.Nonce)
		if !more {
			c.tell(nil)
			if since.IsZero() {
				since = time.Now()
			}
			select {
			case <-c.changed:
				continue
			case err := <-gone:
				return since, err
			}
		}
		b, err := json.Marshal(q)
		if err != nil {
			return since, err
		}
		_ = conn.SetWriteDeadline(time.Now().Add(callTimeout))
		if _, err := conn.Write(b); err != nil {
			return since, fmt.Errorf("pulse: %w", err)
		}
		select {
		case r := <-replies:
			if r.Error != "" {
				return since, fmt.Errorf("pulse: the keeper refused: %s", r.Error)
			}
			c.confirmed(q)
		case err := <-gone:
			return since, err
		case <-time.After(2 * callTimeout):
			return since, errors.New("pulse: the keeper does not answer")
		}
	}
}

// next returns a request that the keeper has not confirmed; false if there is none.
func (c *Client) next(nonce string) (request, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for instance, s := range c.want {
		if c.kept[instance] != s.ID {
			return request{Nonce: nonce, Deployment: s.Deployment, Instance: instance, Session: s.ID}, true
		}
	}
	for instance := range c.kept {
		if _, ok := c.want[instance]; !ok {
			return request{Nonce: nonce, Instance: instance}, true
		}
	}
	return request{}, false
}

func (c *Client) confirmed(q request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.Session == "" {
		delete(c.kept, q.Instance)
		return
	}
	c.kept[q.Instance] = q.Session
}

// receive reads one message before the deadline; the zero deadline waits for ever.
func receive(conn net.Conn, to any, deadline time.Time) error {
	if err := conn.SetReadDeadline(deadline); err != nil {
		return fmt.Errorf("pulse: %w", err)
	}
	buf := make([]byte, maxMessage)
	n, err := conn.Read(buf)
	if err != nil {
		return fmt.Errorf("pulse: the connection to the keeper ended: %w", err)
	}
	if err := json.Unmarshal(buf[:n], to); err != nil {
		return fmt.Errorf("pulse: the keeper sent an invalid message: %w", err)
	}
	return nil
}
