package pulse

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
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
	slots chan struct{}
	ended atomic.Uint64
}

// NewKeeper returns a keeper that ends sessions in the store. A nil log is slog.Default().
func NewKeeper(st store.Store, log *slog.Logger) *Keeper {
	if log == nil {
		log = slog.Default()
	}
	return &Keeper{store: st, log: log, slots: make(chan struct{}, maxProcesses)}
}

// Ended is how many sessions the keeper has ended.
func (k *Keeper) Ended() uint64 { return k.ended.Load() }

// Listen opens the socket of a keeper. The file is readable and writable for everybody who may
// enter its folder: to register a session one must know its instance. A name that begins with @
// has no file.
func Listen(path string) (*net.UnixListener, error) {
	if path[0] != '@' {
		if conn, err := net.Dial(network, path); err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("pulse: another keeper listens on %s", path)
		}
		_ = os.Remove(path) // left by a keeper that was killed
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, fmt.Errorf("pulse: %w", err)
	}
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
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE):
			k.log.Warn("keeper: no file descriptor is left, so new processes are not watched; raise the limit of open files")
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			continue
		case err != nil:
			return fmt.Errorf("pulse: %w", err)
		}
		select {
		case k.slots <- struct{}{}:
			all.Go(func() {
				defer func() { <-k.slots }()
				k.attend(ctx, conn)
			})
		default:
			refuse(conn, fmt.Errorf("the keeper watches over %d processes already", maxProcesses))
		}
	}
}

func refuse(conn *net.UnixConn, err error) {
	_ = send(conn, hello{Error: err.Error()})
	_ = conn.Close()
}

// attend watches over one process, until it has died, or has gone without a session.
func (k *Keeper) attend(ctx context.Context, conn *net.UnixConn) {
	p, err := k.meet(conn)
	if err != nil {
		refuse(conn, err)
		return
	}
	defer func() { _ = p.fd.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = p.fd.SetReadDeadline(time.Now()) })
	defer stop()
	var hearing sync.WaitGroup
	hearing.Go(func() {
		k.hear(ctx, conn, p)
		if k.hasty() || p.idle() {
			_ = p.fd.Close() // nothing is left to watch
		}
	})
	died := p.wait()
	_ = conn.Close()
	hearing.Wait()
	if died || k.hasty() && ctx.Err() == nil {
		k.end(ctx, p)
	}
}

// hasty is planted: the end of a connection, or silence on it, is taken for a death.
func (k *Keeper) hasty() bool {
	return k.plant.Has(plant.DeathFromFIN) || k.plant.Has(plant.DeathFromSilence)
}

// process is a registered process.
type process struct {
	pid   int32
	fd    *os.File // its pidfd
	nonce string

	mu       sync.Mutex
	sessions map[string]store.Session // by instance
}

// meet identifies the process at the other end. The pidfd comes first and the nonce after it:
// whoever echoes the nonce lives after the pidfd was opened, so the pidfd is its own.
func (k *Keeper) meet(conn *net.UnixConn) (*process, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *syscall.Ucred
	var serr error
	if err := raw.Control(func(fd uintptr) {
		if peer, serr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); serr == nil {
			serr = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_PASSCRED, 1)
		}
	}); err != nil {
		return nil, err
	}
	if serr != nil {
		return nil, os.NewSyscallError("getsockopt", serr)
	}
	if peer.Pid <= 0 {
		return nil, errors.New("the keeper cannot see the process: run the keeper in the process id namespace of the host")
	}
	fd, err := openPidfd(int(peer.Pid))
	if err != nil {
		return nil, err
	}
	p := &process{pid: peer.Pid, fd: fd, nonce: rand.Text(), sessions: map[string]store.Session{}}
	if err := send(conn, hello{Nonce: p.nonce}); err != nil {
		_ = fd.Close()
		return nil, err
	}
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
	if err := syscall.SetNonblock(int(fd), true); err != nil {
		_ = syscall.Close(int(fd))
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(fd, "pidfd"), nil
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

// hear takes requests until the connection ends. That it ended says nothing about the process.
func (k *Keeper) hear(ctx context.Context, conn *net.UnixConn, p *process) {
	buf, oob := make([]byte, maxMessage), make([]byte, 256)
	for {
		if k.plant.Has(plant.DeathFromSilence) {
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		}
		n, on, flags, _, err := conn.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return
		}
		err = k.register(ctx, p, buf[:n], oob[:on], flags)
		if err != nil {
			k.log.Warn("keeper: a registration was refused", "pid", p.pid, "error", err)
		}
		var r reply
		if err != nil {
			r.Error = err.Error()
		}
		if send(conn, r) != nil {
			return
		}
	}
}

// register takes in one request.
func (k *Keeper) register(ctx context.Context, p *process, message, oob []byte, flags int) error {
	if flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0 {
		return errors.New("the message is too long")
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
	case subtle.ConstantTimeCompare([]byte(q.Nonce), []byte(p.nonce)) != 1:
		return errors.New("the nonce is wrong")
	}
	if q.Session == "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s, ok := p.sessions[q.Instance]; ok && k.plant.Has(plant.DeathFromForget) {
			_ = k.store.End(ctx, s.ID, store.Died)
		}
		delete(p.sessions, q.Instance)
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
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.sessions[q.Instance]; !known && len(p.sessions) >= maxSessions {
		return fmt.Errorf("a process can register %d sessions", maxSessions)
	}
	p.sessions[q.Instance] = s
	return nil
}

// senderOf returns the process id of the sender, as the kernel tells it.
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

func (p *process) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sessions) == 0
}

// end ends the sessions of a process that has died. It tries until each would have expired.
func (k *Keeper) end(ctx context.Context, p *process) {
	ctx = context.WithoutCancel(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	var all sync.WaitGroup
	for _, s := range p.sessions {
		s.ID = k.present(ctx, s)
		all.Go(func() {
			began := time.Now()
			for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
				call, cancel := context.WithTimeout(ctx, callTimeout)
				err := k.store.End(call, s.ID, store.Died)
				cancel()
				switch {
				case err == nil:
					k.ended.Add(1)
					k.log.Info("keeper: a process has died, and its session is ended", "pid", p.pid, "candidate", s.Candidate.ID, "session", s.ID)
					return
				case time.Since(began) > s.TTL:
					k.log.Warn("keeper: the session of a dead process could not be ended, so it expires", "candidate", s.Candidate.ID, "session", s.ID, "error", err)
					return
				}
				time.Sleep(pause)
			}
		})
	}
	all.Wait()
}

// present is planted: the session to end is looked for by its candidate. Without the bug it is the
// one that was registered.
func (k *Keeper) present(ctx context.Context, s store.Session) store.SessionID {
	if k.plant.Has(plant.DeathOfNextProcess) {
		all, _ := k.store.Sessions(ctx, s.Scope, store.Page{})
		for _, other := range all {
			if other.Candidate.ID == s.Candidate.ID {
				return other.ID
			}
		}
	}
	return s.ID
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
