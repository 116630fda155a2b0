package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"sync"
	"time"
)

// diagnose returns why members cannot be reached, or nil if it finds no reason. The client does
// not tell: with a wrong certificate it tries to connect for ever.
func (d *Driver) diagnose(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	found := make([]error, len(d.members))
	var all sync.WaitGroup
	for i, m := range d.members {
		all.Go(func() {
			if err := knock(ctx, m.endpoint, d.cfg.TLS); err != nil {
				found[i] = fmt.Errorf("%s: %w", m.endpoint, err)
			}
		})
	}
	all.Wait()
	return errors.Join(found...)
}

// knock opens a connection, closes it, and returns why it cannot be used.
func knock(ctx context.Context, endpoint string, config *tls.Config) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return nil // host:port without a scheme cannot be diagnosed
	}
	if u.Scheme == "http" {
		// This only finds out whether the server speaks TLS. It sends nothing, so it need not
		// verify the server.
		c, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", u.Host) //nolint:gosec // see above
		if err == nil {
			_ = c.Close()
			return errors.New("it speaks TLS: write https:// and give its authority")
		}
		return unreachable(err)
	}
	if config == nil {
		config = &tls.Config{}
	}
	c, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	// The server checks our certificate after the handshake has succeeded on our side.
	deadline, _ := ctx.Deadline()
	_ = c.SetReadDeadline(deadline)
	if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// unreachable returns err if it is an error of dialling, and nil otherwise.
func unreachable(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return err
	}
	return nil
}
