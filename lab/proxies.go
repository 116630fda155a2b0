package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/tenurehq/tenure/server/httpapi"
)

// proxies are between the nodes and what they call. Anybody on this machine can cut, slow
// down and close them over Toxiproxy's HTTP API.
type proxies struct {
	server *toxiproxy.ApiServer
	url    string
	stop   context.CancelFunc
	ended  chan error
}

func startProxies() (*proxies, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	// Toxiproxy's own Listen does not tell its port and cannot be stopped safely.
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	ctx, cancel := context.WithCancel(context.Background())
	p := &proxies{server: server, url: "http://" + ln.Addr().String(), stop: cancel, ended: make(chan error, 1)}
	go func() {
		p.ended <- httpapi.Serve(ctx, ln, server.Routes(), httpapi.Limits{Connections: 64}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	}()
	return p, nil
}

// add adds a proxy that listens on loopback, and returns its address.
func (p *proxies) add(name, upstream string) (string, error) {
	proxy := toxiproxy.NewProxy(p.server, name, "127.0.0.1:0", upstream)
	if err := p.server.Collection.Add(proxy, true); err != nil {
		return "", fmt.Errorf("proxy %s: %w", name, err)
	}
	return proxy.Listen, nil
}

func (p *proxies) close() error {
	p.stop()
	return errors.Join(<-p.ended, p.server.Collection.Clear())
}
