//go:build !linux

package pulse

import (
	"context"
	"log/slog"
	"net"

	"github.com/tenurehq/tenure/store"
)

// Keeper needs Linux.
type Keeper struct{}

// NewKeeper returns a keeper that does nothing.
func NewKeeper(store.Store, *slog.Logger) *Keeper { return &Keeper{} }

// Ended is 0.
func (*Keeper) Ended() uint64 { return 0 }

// Listen fails with ErrUnsupported.
func Listen(string) (*net.UnixListener, error) { return nil, ErrUnsupported }

// Serve fails with ErrUnsupported.
func (*Keeper) Serve(context.Context, *net.UnixListener) error { return ErrUnsupported }

// Main does nothing.
func Main(func(context.Context) (store.Store, error)) {}

// Start fails with ErrUnsupported.
func Start(*slog.Logger) (*Client, error) { return nil, ErrUnsupported }

// ListenPeers fails with ErrUnsupported.
func ListenPeers(string) (*net.UnixListener, error) { return nil, ErrUnsupported }

// Peers returns l.
func (*Keeper) Peers(_ context.Context, l *net.UnixListener) net.Listener { return l }

// Drop does nothing.
func (*Keeper) Drop(store.SessionID) {}

// Wait does nothing.
func (*Keeper) Wait() {}

// Peer needs Linux.
type Peer struct{}

// Register fails with ErrUnsupported.
func (*Peer) Register(store.Session) error { return ErrUnsupported }

func trusted(net.Conn, string) error { return ErrUnsupported }
