package pulse

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/tenurehq/tenure/store"
)

// ListenPeers opens a unix stream socket for a server that is the keeper of its clients, as
// `tenure serve` is. It needs Linux 6.5, and fails on an older kernel.
func ListenPeers(path string) (*net.UnixListener, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	pidfd, err := peerPidfd(uintptr(fds[0]))
	_, _ = syscall.Close(fds[0]), syscall.Close(fds[1])
	if err != nil {
		return nil, err
	}
	_ = pidfd.Close()
	return listen("unix", path, func(_, _ string, c syscall.RawConn) error {
		var serr error // set before anybody can connect, so that the kernel names the sender of each byte
		err := c.Control(func(fd uintptr) { serr = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_PASSCRED, 1) })
		return errors.Join(err, serr)
	})
}

// Peers accepts connections from l, and knows the process at the other end of each. The
// RemoteAddr of a connection is its *Peer. A read fails if another process has sent.
func (k *Keeper) Peers(ctx context.Context, l *net.UnixListener) net.Listener {
	return peers{l, k, ctx}
}

type peers struct {
	*net.UnixListener
	k   *Keeper
	ctx context.Context
}

// Accept implements net.Listener.
func (l peers) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		p, err := l.k.peer(l.ctx, conn)
		if err == nil {
			return &peerConn{UnixConn: conn, peer: &Peer{l.k, l.ctx, p}, oob: make([]byte, syscall.CmsgSpace(syscall.SizeofUcred))}, nil
		}
		l.k.log.Warn("keeper: a connection was refused", "error", err)
		_ = conn.Close()
	}
}

// peer identifies the process that has made the connection. The kernel gives its pidfd, so that
// the next process with its id cannot be taken for it.
func (k *Keeper) peer(ctx context.Context, conn *net.UnixConn) (*process, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *syscall.Ucred
	var pidfd *os.File
	var serr, perr error
	if err := raw.Control(func(fd uintptr) {
		peer, serr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		pidfd, perr = peerPidfd(fd)
	}); err != nil || serr != nil || perr != nil {
		return nil, errors.Join(err, serr, perr)
	}
	if peer.Pid <= 0 {
		_ = pidfd.Close()
		return nil, errors.New("the keeper cannot see the process: run the keeper in the process id namespace of the host")
	}
	taken := false
	p, err := k.join(ctx, conn, peer.Pid, maxPeerConnections, func() (*os.File, error) {
		taken = true
		return pidfd, nil
	})
	if taken {
		return p, err
	}
	// The keeper knows a process with this id, which lived just now. If the peer lives too, it
	// is that process.
	same := &process{fd: pidfd}
	if err == nil && !same.lives() {
		k.leave(conn, p)
		err = fmt.Errorf("process %d has ended", peer.Pid)
	}
	_ = pidfd.Close()
	return p, err
}

// peerPidfd returns the pidfd of the process at the other end of a socket.
func peerPidfd(socket uintptr) (*os.File, error) {
	const peerPidfd = 77 // SO_PEERPIDFD
	fd, err := syscall.GetsockoptInt(int(socket), syscall.SOL_SOCKET, peerPidfd)
	switch {
	case errors.Is(err, syscall.ENOPROTOOPT):
		return nil, ErrNoPeer
	case err != nil:
		return nil, os.NewSyscallError("getsockopt", err)
	}
	return pidfdFile(fd)
}

// Peer is the process at the other end of a connection. As an address it is one of this host.
type Peer struct {
	k   *Keeper
	ctx context.Context
	p   *process
}

// Network implements net.Addr.
func (*Peer) Network() string { return "unix" }

// String implements net.Addr.
func (*Peer) String() string { return "127.0.0.1:0" }

// Register makes the keeper end a session when the peer has died. The caller has opened it for
// the peer. It fails if another process has registered it, or the peer has died.
func (p *Peer) Register(s store.Session) error { return p.k.hold(p.ctx, p.p, string(s.ID), s) }

// Drop forgets a session of a peer that has ended.
func (k *Keeper) Drop(id store.SessionID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.holders[id]
	if p == nil || p.over {
		return
	}
	delete(k.holders, id)
	delete(p.sessions, string(id))
	k.release(p)
}

// Wait returns when the context of Peers has ended, and the keeper has ended the sessions of
// those that have died.
func (k *Keeper) Wait() { k.all.Wait() }

// peerConn is a connection of a peer. The caller reads in one goroutine at a time.
type peerConn struct {
	*net.UnixConn
	peer *Peer
	oob  []byte
	once sync.Once
}

// Read fails if another process than the one that connected has sent: a child that inherited
// the connection must not register a session as its parent.
func (c *peerConn) Read(b []byte) (int, error) {
	n, on, flags, _, err := c.ReadMsgUnix(b, c.oob)
	if err != nil || n == 0 {
		return n, err
	}
	sender, err := senderOf(c.oob[:on])
	switch {
	case flags&syscall.MSG_CTRUNC != 0:
		return 0, errors.New("pulse: the message brings descriptors")
	case err != nil:
		return 0, err
	case sender != c.peer.p.pid:
		return 0, fmt.Errorf("pulse: process %d uses the connection of process %d", sender, c.peer.p.pid)
	}
	return n, nil
}

// RemoteAddr returns the *Peer.
func (c *peerConn) RemoteAddr() net.Addr { return c.peer }

// Close implements net.Conn.
func (c *peerConn) Close() error {
	c.once.Do(func() { c.peer.k.leave(c.UnixConn, c.peer.p) })
	return nil
}
