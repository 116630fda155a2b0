package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits bound what callers can make a server hold.
type Limits struct {
	// Connections open at once; further ones wait to be accepted. Default 4096.
	Connections int
	// HeaderBytes of one request. Default 32 KiB.
	HeaderBytes int
	// Read is how long a request may take to arrive. Default 30s.
	Read time.Duration
	// Write is how long a request may take to be done and answered. Default 60s.
	Write time.Duration
	// Idle is how long a connection is kept without a request. Default 120s.
	Idle time.Duration
	// SendBuffer is how many bytes the system keeps for a caller that does not read.
	// Default as much as the system likes, which may be megabytes.
	SendBuffer int
	// TLS, if set, is spoken on every connection; inside the limit, so that the server sees
	// a *tls.Conn: it fills Request.TLS and speaks HTTP/2 on nothing else.
	TLS *tls.Config
	// Grace is how long requests under way may take once the server is asked to
	// stop. Default 15s.
	Grace time.Duration
}

func (l Limits) withDefaults() Limits {
	or := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	if l.Connections <= 0 {
		l.Connections = 4096
	}
	if l.HeaderBytes <= 0 {
		l.HeaderBytes = 32 << 10
	}
	or(&l.Read, 30*time.Second)
	or(&l.Write, 60*time.Second)
	or(&l.Idle, 120*time.Second)
	or(&l.Grace, 15*time.Second)
	return l
}

// Serve serves h on ln until ctx ends, then logs "stopping" with the cause and lets
// requests under way end. It returns when the last has, or with an error when they
// took too long. A panic in a handler ends that connection and is logged.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, l Limits, log *slog.Logger) error {
	l = l.withDefaults()
	s := &http.Server{
		Handler:           h,
		TLSConfig:         l.TLS,
		ReadHeaderTimeout: min(l.Read, 10*time.Second),
		ReadTimeout:       l.Read,
		WriteTimeout:      l.Write,
		IdleTimeout:       l.Idle,
		MaxHeaderBytes:    l.HeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() {
		if l.TLS != nil {
			ended <- s.ServeTLS(limit(ln, l), "", "")
			return
		}
		ended <- s.Serve(limit(ln, l))
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	case <-ctx.Done():
		// Logged here and not by a goroutine of the caller: Serve returns after it, so the
		// line is written before the process can exit.
		log.Info("stopping", "addr", ln.Addr().String(), "cause", context.Cause(ctx))
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Grace)
	defer cancel()
	err := s.Shutdown(grace)
	if err != nil {
		err = fmt.Errorf("requests were still under way after %v and were cut off", l.Grace)
		_ = s.Close()
	}
	if serr := <-ended; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}

// limit accepts no more connections at once than there may be. A caller beyond waits in
// the kernel's queue, which is bounded too.
func limit(ln net.Listener, l Limits) net.Listener {
	return &limited{Listener: ln, send: l.SendBuffer, places: make(chan struct{}, l.Connections), closed: make(chan struct{})}
}

// keepAlive ends the connection of a client that vanished without closing it after 20 s,
// so that its request does not wait for nobody.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}

type limited struct {
	net.Listener
	send   int
	places chan struct{}
	once   sync.Once
	closed chan struct{}
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	if t, ok := c.(*net.TCPConn); ok {
		// A connection that is gone already says so soon enough.
		_ = t.SetKeepAliveConfig(keepAlive)
		if l.send > 0 {
			_ = t.SetWriteBuffer(l.send)
		}
	}
	return &counted{Conn: c, leave: sync.OnceFunc(func() { <-l.places })}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
