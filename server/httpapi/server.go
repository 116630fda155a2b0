package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
)

// Limits bound the resources that callers can use.
type Limits struct {
	// Connections open at once; further ones wait to be accepted. Default 4096.
	Connections int
	// HeaderBytes of one request. Default 32 KiB.
	HeaderBytes int
	// Read is how long a request may take to arrive. Default 30s.
	Read time.Duration
	// Write is how long the handler and the answer may take. Default 60s.
	Write time.Duration
	// Idle is how long a connection is kept without a request. Default 120s.
	Idle time.Duration
	// SendBuffer is how many bytes the system buffers for a caller that does not read. Default:
	// the system decides, which may be megabytes.
	SendBuffer int
	// TLS, if set, is used on every connection.
	TLS *tls.Config
	// ConnContext, if set, returns the context of the requests on a connection.
	ConnContext func(context.Context, net.Conn) context.Context
	// Grace is how long requests may take after the server begins to stop. Default 15s.
	Grace time.Duration
}

func (l Limits) withDefaults() Limits {
	l.Connections, l.HeaderBytes = or(l.Connections, 4096), or(l.HeaderBytes, 32<<10)
	l.Read, l.Write = or(l.Read, 30*time.Second), or(l.Write, time.Minute)
	l.Idle, l.Grace = or(l.Idle, 2*time.Minute), or(l.Grace, 15*time.Second)
	return l
}

func or[T int | time.Duration](v, def T) T {
	if v > 0 {
		return v
	}
	return def
}

// Serve serves h on ln until ctx ends. Then it logs "stopping" with the cause, waits for the
// requests in progress, and returns an error if they took too long. A panic in a handler is
// logged and ends that connection.
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
		ConnContext:       l.ConnContext,
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
		// Serve returns after this line is logged, so it is written before the process exits.
		log.Info("stopping", "addr", ln.Addr().String(), "cause", context.Cause(ctx))
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Grace)
	defer cancel()
	err := s.Shutdown(grace)
	if err != nil {
		err = fmt.Errorf("requests were still in progress after %v and were cut off", l.Grace)
		_ = s.Close()
	}
	if serr := <-ended; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}

// limit bounds the number of open connections. Further ones wait in the queue of the kernel,
// which is bounded too. TLS runs on top of it, so that the server sees a *tls.Conn, which it
// needs for Request.TLS and HTTP/2.
func limit(ln net.Listener, l Limits) net.Listener {
	return netutil.LimitListener(tuned{ln, l.SendBuffer}, l.Connections)
}

// keepAlive closes the connection of a client that vanished after 20 s, so that its request
// does not wait for nobody.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}

// tuned sets the options of the connections that it accepts.
type tuned struct {
	net.Listener
	send int // bytes of the send buffer; 0: the system decides
}

func (l tuned) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if t, ok := c.(*net.TCPConn); ok {
		// If the connection is gone, the next read reports it.
		_ = t.SetKeepAliveConfig(keepAlive)
		if l.send > 0 {
			_ = t.SetWriteBuffer(l.send)
		}
	}
	return c, err
}
