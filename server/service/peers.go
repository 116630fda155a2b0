package service

import (
	"context"
	"net"
	"net/http"

	"github.com/tenurehq/tenure/pulse"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
)

type peerKey struct{}

// ServePeers serves the instance to processes of this host on a socket of pulse.ListenPeers,
// without TLS, until ctx ends. A session that is opened there ends as soon as the process
// that opened it has died.
func (s *Service) ServePeers(ctx context.Context, ln *net.UnixListener, l httpapi.Limits) error {
	defer s.keeper.Wait()
	l.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, peerKey{}, c.RemoteAddr())
	}
	return httpapi.Serve(ctx, s.keeper.Peers(ctx, ln), s, l, s.cfg.Log)
}

// registered registers a session with the keeper if a peer opened it. A session that another
// process has registered stays as it is.
func registered(ctx context.Context, session store.Session) error {
	peer, ok := ctx.Value(peerKey{}).(*pulse.Peer)
	if !ok {
		return nil
	}
	if err := peer.Register(session); err != nil {
		return httpapi.Refuse(http.StatusConflict, "not_registered", "the keeper cannot watch over this process: %v", err)
	}
	return nil
}
