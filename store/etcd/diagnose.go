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
// not say it: with a wrong certificate it tries to connect forever.
func (d *Driver) diagnose(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	found := make([]error, len(d.members))
	var all sync.WaitGroup
	for i, m := range d.members {
		all.Go(func() {
			if err := probe(ctx, m.endpoint, d.cfg.TLS); err != nil {
				found[i] = fmt.Errorf("%s: %w", m.endpoint, err)
			}
		})
	}
	all.Wait()
	return errors.Join(found...)
}

// probe makes a connection and closes it.
func probe(ctx context.Context, endpoint string, config *tls.Config) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return nil // host:port without a scheme: nothing to check
	}
	if u.Scheme == "http" {
		// This only finds out whether the server uses TLS. It verifies and sends nothing.
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
	// The server may reject our certificate after our side of the handshake has succeeded.
	deadline, _ := ctx.Deadline()
	_ = c.SetReadDeadline(deadline)
	if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// unreachable returns the error if the connection failed, and nil for every other error.
func unreachable(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return err
	}
	return nil
}
