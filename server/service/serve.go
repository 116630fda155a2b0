package service

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/tenurehq/tenure/server/httpapi"
)

// Limits suit a service whose streams are connections that stay: room for the streams
// that the gate allows, and for the requests beside them.
func Limits() httpapi.Limits {
	return httpapi.Limits{
		Connections: 25_000, HeaderBytes: 32 << 10, Read: 15 * time.Second, Write: 60 * time.Second, Idle: 2 * time.Minute, Grace: 15 * time.Second,
		SendBuffer: 64 << 10, // a stream that is not read soon blocks, and is cut off
	}
}

// Serve serves the instance on ln until ctx ends. Then streams and waits end first, so
// that their callers go elsewhere, and other requests under way are answered, within the
// grace. With a TLS configuration it speaks TLS.
func (s *Service) Serve(ctx context.Context, ln net.Listener, t *tls.Config, l httpapi.Limits) error {
	l.TLS = t
	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		s.Drain()
	})
	err := httpapi.Serve(ctx, ln, s, l, s.cfg.Log)
	if !stop() {
		<-drained
	}
	return err
}
