package pulse

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// Keeper watches over the processes that register with it, and ends their sessions when they
// have died.
type Keeper struct {
	store store.Store
	log   *slog.Logger
	plant plant.Set
	ended atomic.Uint64
	all   sync.WaitGroup

	mu        sync.Mutex
	watched   int                          // processes, including dead ones whose sessions are being ended
	processes map[int32]*process           // by process id
	holders   map[store.SessionID]*process // the process that registered the session
}

// NewKeeper returns a keeper that ends sessions in the store. A nil log is slog.Default().
func NewKeeper(st store.Store, log *slog.Logger) *Keeper {
	if log == nil {
		log = slog.Default()
	}
	return &Keeper{store: st, log: log, processes: map[int32]*process{}, holders: map[store.SessionID]*process{}}
}

// Ended is how many sessions the keeper has ended.
func (k *Keeper) Ended() uint64 { return k.ended.Load() }

// Listen opens the socket of a keeper. The file is readable and writable for everybody who may
// enter its folder: to register a session one must know its instance. A name that begins with @
// has no file; clients of other users refuse such a keeper, unless it is root's.
func Listen(path string) (*net.UnixListener, error) { return listen(network, path, nil) }

func listen(network, path string, prepare func(network, address string, c syscall.RawConn) error) (*net.UnixListener, error) {
	if path == "" {
		return nil, errors.New("pulse: the path of the keeper's socket must not be empty")
	}
	if path[0] != '@' {
		conn, err := net.DialTimeout(network, path, callTimeout)
		if err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("pulse: another keeper listens on %s", path)
		}
		// A socket on which nobody listens was left by a keeper that was killed.
		if info, gone := os.Lstat(path); gone == nil && info.Mode().Type() == os.ModeSocket && errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(path)
		}
	}
	socket, err := (&net.ListenConfig{Control: prepare}).Listen(context.Background(), network, path)
	if err != nil {
		return nil, fmt.Errorf("pulse: %w", err)
	}
	l := socket.(*net.UnixListener)
	if path[0] != '@' {
		if err := os.Chmod(path, 0o666); err != nil {
			_ = l.Close()
			return nil, fmt.Errorf("pulse: %w", err)
		}
	}
	return l, nil
}

const network = "unixpacket"

// Serve accepts processes until ctx ends or l is closed. Then it ends the sessions of those that
// have died. If l was closed, it first waits for the others.
func (k *Keeper) Serve(ctx context.Context, l *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer k.all.Wait()
	for {
		conn, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		case err != nil: // such as too many open files: those who are registered stay so
			k.log.Warn("keeper: cannot accept a process; if no file descriptor is left, raise the limit of open files", "error", err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			continue
		}
		if err := k.meet(ctx, conn); err != nil {
			_ = send(conn, hello{Error: err.Error()})
			_ = conn.Close()
		}
	}
}

// watch waits until a process has died, or has disconnected without a session.
func (k *Keeper) watch(ctx context.Context, p *process) {
	stop := context.AfterFunc(ctx, func() { _ = p.fd.SetReadDeadline(time.Now()) })
	defer stop()
	died := p.wait()
	k.mu.Lock()
	p.over, p.died = true, died || k.hasty() && ctx.Err() == nil
	if k.processes[p.pid] == p {
		delete(k.processes, p.pid)
	}
	for conn := range p.conns {
		_ = conn.Close() // a child of the process may hold the other end
	}
	k.mu.Unlock()
	_ = p.fd.Close()
	if p.died {
		k.end(ctx, p, slices.Collect(maps.Values(p.sessions))...) // nobody changes sessions after over is set
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range p.sessions {
		delete(k.holders, s.ID)
	}
	k.watched--
}

// hasty is planted: the end of a connection, or silence on it, is taken for a death.
func (k *Keeper) hasty() bool {
	return k.plant.Has(plant.DeathFromFIN) || k.plant.Has(plant.DeathFromSilence)
}

// process is a registered process. The keeper's mutex guards it.
type process struct {
	pid      int32
	fd       *os.File // its pidfd
	conns    map[*net.UnixConn]struct{}
	sessions map[string]store.Session // by instance
	over     bool                     // the keeper no longer watches over it
	died     bool
}

// lives returns false if the process has died or is no longer watched: then another process may
// have its id.
func (p *process) lives() bool {
	raw, err := p.fd.SyscallConn()
	if err != nil || p.over {
		return false
	}
	lives := false
	return raw.Control(func(fd uintptr) { lives = !exited(fd) }) == nil && lives
}

// meet identifies the process at the other end. It opens the pidfd before it sends the nonce: a
// process that echoes the nonce lived after the pidfd was opened, so the pidfd is its own.
func (k *Keeper) meet(ctx context.Context, conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *syscall.Ucred
	var serr error
	if err := raw.Control(func(fd uintptr) {
		if peer, serr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); serr == nil {
			serr = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_PASSCRED, 1)
		}
	}); err != nil {
		return err
	}
	if serr != nil {
		return os.NewSyscallError("getsockopt", serr)
	}
	if peer.Pid <= 0 {
		return errors.New("the keeper cannot see the process: run the keeper in the process id namespace of the host")
	}
	p, err := k.join(ctx, conn, peer.Pid, maxConnections, func() (*os.File, error) { return openPidfd(int(peer.Pid)) })
	if err == nil {
		k.all.Go(func() { k.hear(ctx, conn, p) })
	}
	return err
}

// join adds a connection of the process with this id, and begins to watch over it.
func (k *Keeper) join(ctx context.Context, conn *net.UnixConn, pid int32, most int, open func() (*os.File, error)) (*process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.processes[pid]
	if p == nil || !p.lives() {
		if k.watched >= maxProcesses {
			return nil, fmt.Errorf("the keeper watches over %d processes already", maxProcesses)
		}
		fd, err := open()
		if err != nil {
			return nil, err
		}
		p = &process{pid: pid, fd: fd, conns: map[*net.UnixConn]struct{}{}, sessions: map[string]store.Session{}}
		k.processes[p.pid] = p
		k.watched++
		k.all.Go(func() { k.watch(ctx, p) })
	}
	if len(p.conns) >= most {
		return nil, fmt.Errorf("a process can have %d connections", most)
	}
	p.conns[conn] = struct{}{}
	return p, nil
}

// openPidfd opens a pidfd that the runtime can wait for.
func openPidfd(pid int) (*os.File, error) {
	const pidfdOpen = 434 // on every architecture
	fd, _, errno := syscall.Syscall(pidfdOpen, uintptr(pid), 0, 0)
	switch {
	case errno == syscall.ENOSYS:
		return nil, ErrUnsupported
	case errno != 0:
		return nil, os.NewSyscallError("pidfd_open", errno)
	}
	syscall.CloseOnExec(int(fd))
	return pidfdFile(int(fd))
}

func pidfdFile(fd int) (*os.File, error) {
	if err := syscall.SetNonblock(fd, true); err != nil {
		_ = syscall.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// wait returns true when the process has died, and false when its pidfd is closed or its deadline
// has passed.
func (p *process) wait() bool {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return false
	}
	died := false
	_ = raw.Read(func(fd uintptr) bool {
		died = exited(fd)
		return died
	})
	return died
}

// exited asks the kernel whether the process of the pidfd has died.
func exited(fd uintptr) bool {
	const pollIn = 1
	poll := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd), events: pollIn}
	n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&syscall.Timespec{})), 0, 0, 0)
	return errno == 0 && n == 1 && poll.revents&pollIn != 0
}

// hear reads requests until the connection ends. The end does not prove that the process died.
func (k *Keeper) hear(ctx context.Context, conn *net.UnixConn, p *process) {
	defer k.leave(conn, p)
	nonce := rand.Text()
	if send(conn, hello{Nonce: nonce}) != nil {
		return
	}
	// Room for the sender's id only: file descriptors in a message would never be closed.
	buf, oob := make([]byte, maxMessage), make([]byte, syscall.CmsgSpace(syscall.SizeofUcred))
	for {
		_ = conn.SetReadDeadline(k.patience(p))
		n, on, flags, _, err := conn.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return
		}
		err = k.register(ctx, p, nonce, buf[:n], oob[:on], flags)
		if err != nil {
			k.log.Warn("keeper: a registration was refused", "pid", p.pid, "error", err)
			_ = send(conn, reply{Error: err.Error()})
			return // so a process cannot fill the log
		}
		if send(conn, reply{}) != nil {
			return
		}
	}
}

// patience returns the deadline of the next request: a process without a session must not occupy a
// connection for ever.
func (k *Keeper) patience(p *process) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.plant.Has(plant.DeathFromSilence):
		return time.Now().Add(time.Second)
	case len(p.sessions) == 0:
		return time.Now().Add(2 * callTimeout)
	}
	return time.Time{}
}

// leave closes a connection. It stops watching a process without connections and sessions.
func (k *Keeper) leave(conn *net.UnixConn, p *process) {
	_ = conn.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(p.conns, conn)
	k.release(p)
}

// release stops watching a process without connections and sessions. k.mu is held.
func (k *Keeper) release(p *process) {
	if k.hasty() || len(p.conns) == 0 && len(p.sessions) == 0 {
		p.over = p.over || !k.hasty()
		_ = p.fd.Close() // nothing is left to watch
	}
}

// register handles one request.
func (k *Keeper) register(ctx context.Context, p *process, nonce string, message, oob []byte, flags int) error {
	if flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0 {
		return errors.New("the message is too long, or brings descriptors")
	}
	sender, err := senderOf(oob)
	if err != nil {
		return err
	}
	var q request
	if err := json.Unmarshal(message, &q); err != nil {
		return errors.New("the message is not valid")
	}
	switch {
	case k.plant.Has(plant.PidReuse):
	case sender != p.pid:
		return fmt.Errorf("process %d uses the connection of process %d", sender, p.pid)
	case subtle.ConstantTimeCompare([]byte(q.Nonce), []byte(nonce)) != 1:
		return errors.New("the nonce is wrong")
	}
	if q.Session == "" {
		k.forget(ctx, p, q.Instance)
		return nil
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := k.store.Session(call, q.Session)
	switch {
	case err != nil:
		return fmt.Errorf("read the session: %w", err)
	case s.Deployment != q.Deployment:
		return fmt.Errorf("the session belongs to deployment %q, and the keeper to %q", q.Deployment, s.Deployment)
	case s.Instance == "" || subtle.ConstantTimeCompare([]byte(s.Instance), []byte(store.InstanceDigest(q.Instance))) != 1:
		return errors.New("the session was opened by another process")
	}
	return k.hold(ctx, p, q.Instance, s)
}

// hold registers a session that belongs to the process, in place of an earlier one of the instance.
func (k *Keeper) hold(ctx context.Context, p *process, instance string, s store.Session) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	was, known := p.sessions[instance]
	other := k.holders[s.ID]
	switch {
	case other != nil && other != p && !k.plant.Has(plant.DeathOfDuplicate): // first, whether or not p has died
		return fmt.Errorf("process %d has registered the session", other.pid)
	case p.died: // after it sent the request
		k.all.Go(func() { k.end(ctx, p, s) })
		fallthrough
	case p.over:
		return errors.New("the process has ended")
	case !known && len(p.sessions) >= maxSessions:
		return fmt.Errorf("a process can register %d sessions", maxSessions)
	}
	delete(k.holders, was.ID)
	p.sessions[instance], k.holders[s.ID] = s, p
	return nil
}

func (k *Keeper) forget(ctx context.Context, p *process, instance string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s, known := p.sessions[instance]
	if !known || p.over {
		return
	}
	delete(k.holders, s.ID)
	delete(p.sessions, instance)
	if k.plant.Has(plant.DeathFromForget) {
		_ = k.store.End(ctx, s.ID, store.Died)
	}
}

// senderOf returns the process id of the sender, which the kernel adds to the message.
func senderOf(oob []byte) (int32, error) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return 0, os.NewSyscallError("recvmsg", err)
	}
	for i := range messages {
		if c, err := syscall.ParseUnixCredentials(&messages[i]); err == nil {
			return c.Pid, nil
		}
	}
	return 0, errors.New("the kernel did not name the sender")
}

// end ends sessions of a process that has died. It retries until the TTL of each is over. When ctx
// ends, it tries once more.
func (k *Keeper) end(ctx context.Context, p *process, sessions ...store.Session) {
	var all sync.WaitGroup
	for _, s := range k.present(ctx, sessions) {
		all.Go(func() {
			began := time.Now()
			for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
				last := ctx.Err() != nil || time.Since(began) > s.TTL
				call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
				err := k.store.End(call, s.ID, store.Died)
				cancel()
				switch {
				case err == nil:
					k.ended.Add(1)
					k.log.Info("keeper: a process has died, and its session is ended", "pid", p.pid, "candidate", s.Candidate.ID, "session", s.ID)
					return
				case last:
					k.log.Warn("keeper: the session of a dead process could not be ended, so it expires", "candidate", s.Candidate.ID, "session", s.ID, "error", err)
					return
				}
				select {
				case <-time.After(pause):
				case <-ctx.Done():
				}
			}
		})
	}
	all.Wait()
}

// present returns the sessions to end: those that were registered. With planted bugs it returns
// all sessions of the candidate, or all sessions in the scope.
func (k *Keeper) present(ctx context.Context, registered []store.Session) []store.Session {
	next, every := k.plant.Has(plant.DeathOfNextProcess), k.plant.Has(plant.DeathOfUnregistered)
	if !next && !every {
		return registered
	}
	var found []store.Session
	for _, s := range registered {
		all, _ := k.store.Sessions(ctx, s.Scope, store.Page{})
		for _, other := range all {
			if every || other.Candidate.ID == s.Candidate.ID {
				found = append(found, other)
			}
		}
	}
	return found
}

func send(conn *net.UnixConn, message any) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(callTimeout)); err != nil {
		return err
	}
	_, err = conn.Write(b)
	return err
}
