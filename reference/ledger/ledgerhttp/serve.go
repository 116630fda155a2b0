package ledgerhttp

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/server/httpapi"
)

// Config configures a ledger and its server.
type Config struct {
	ledger.Config
	// Listen is host:port; port 0 is a free one.
	Listen string
	// Hosts are names by which callers reach the ledger, besides localhost, the host of
	// Listen and every IP address. Requests to other names are refused: see
	// httpapi.OnlyHosts.
	Hosts []string
	// MaxBody is the largest body in bytes. Default 4 MiB.
	MaxBody int64
	// HTTP are the limits of the server.
	HTTP httpapi.Limits
}

// Serve opens a ledger and serves it over HTTP until ctx ends. Then it answers the requests that
// were begun and commits what waits. It calls ready once it listens.
func Serve(ctx context.Context, cfg Config, ready func(addr string) error) (err error) {
	// The port comes first: if it is in use, no database is created.
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	l, err := ledger.Open(ctx, cfg.Config)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := ready(ln.Addr().String()); err != nil {
		return errors.Join(err, ln.Close())
	}
	return httpapi.Serve(ctx, ln, httpapi.OnlyHosts(Handler(l, cfg.MaxBody), append(cfg.Hosts, cfg.Listen)...), cfg.HTTP, l.Config().Logger)
}
