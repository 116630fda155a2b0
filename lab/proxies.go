package lab

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/tenurehq/tenure/server/httpapi"
)

// proxies stand between the nodes and what they lean on. They can be cut, slowed and
// closed over Toxiproxy's own HTTP interface, by anybody on this machine.
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
	// Toxiproxy's own Listen can neither be asked for its port nor stopped safely.
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	ctx, cancel := context.WithCancel(context.Background())
	p := &proxies{server: server, url: "http://" + ln.Addr().String(), stop: cancel, ended: make(chan error, 1)}
	go func() {
		p.ended <- httpapi.Serve(ctx, ln, server.Routes(), httpapi.Limits{Connections: 64}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	}()
	return p, nil
}

// add makes a proxy that listens on loopback, and returns where.
func (p *proxies) add(name, listen, upstream string) (string, error) {
	proxy := toxiproxy.NewProxy(p.server, name, listen, upstream)
	if err := p.server.Collection.Add(proxy, true); err != nil {
		return "", fmt.Errorf("proxy %s: %w", name, err)
	}
	return proxy.Listen, nil
}

func (p *proxies) close() error {
	p.stop()
	err := <-p.ended
	if cerr := p.server.Collection.Clear(); err == nil {
		err = cerr
	}
	return err
}
