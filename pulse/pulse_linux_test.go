package pulse

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// patience is how long the tests wait for what must happen.
const patience = 30 * time.Second

// modeEnv turns the test binary into one of the processes that register.
const modeEnv = "TENURE_PULSE_MODE"

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeEnv); mode != "" {
		if err := candidate(mode); err != nil {
			fmt.Println("error:", err)
		}
		_, _ = io.Copy(io.Discard, os.Stdin) // lives until the test is done
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// candidate registers the session that the environment names, and then does what the mode says.
func candidate(mode string) error {
	s := store.Session{ID: store.SessionID(os.Getenv("SESSION")), Deployment: os.Getenv("DEPLOYMENT")}
	socket, instance := os.Getenv("SOCKET"), os.Getenv("INSTANCE")
	switch mode {
	case "fork": // another process uses the connection of this one, which ends
		conn, err := net.DialUnix(network, nil, &net.UnixAddr{Name: socket, Net: network})
		if err != nil {
			return err
		}
		var h hello
		if err := receive(conn, &h, time.Now().Add(patience)); err != nil {
			return err
		}
		file, err := conn.File()
		if err != nil {
			return err
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		next := exec.Command("/proc/self/exe")
		next.Env = append(os.Environ(), modeEnv+"=forked", "NONCE="+h.Nonce)
		next.Stdin, next.Stdout, next.Stderr, next.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{file, w}
		if err := next.Start(); err != nil {
			return err
		}
		_ = w.Close()
		_, _ = io.Copy(io.Discard, r) // until it has asked
		os.Exit(0)
	case "orphan": // the same, and it ends before the keeper accepts the connection
		conn, err := net.DialUnix(network, nil, &net.UnixAddr{Name: socket, Net: network})
		if err != nil {
			return err
		}
		file, err := conn.File()
		if err != nil {
			return err
		}
		next := exec.Command("/proc/self/exe")
		next.Env = append(os.Environ(), modeEnv+"=forked")
		next.Stdin, next.Stdout, next.Stderr, next.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{file, os.Stderr}
		if err := next.Start(); err != nil {
			return err
		}
		os.Exit(0)
	case "forked":
		conn, err := net.FileConn(os.NewFile(3, "connection"))
		if err != nil {
			return err
		}
		h := hello{Nonce: os.Getenv("NONCE")}
		if h.Nonce == "" {
			if err := receive(conn, &h, time.Now().Add(patience)); err != nil {
				return err
			}
		}
		b, _ := json.Marshal(request{Nonce: h.Nonce, Deployment: s.Deployment, Instance: instance, Session: s.ID})
		if _, err := conn.Write(b); err != nil {
			return err
		}
		var r reply
		if err := receive(conn, &r, time.Now().Add(patience)); err != nil {
			return err
		}
		_ = os.NewFile(4, "asked").Close()
		fmt.Println("pid", os.Getpid())
		return nil
	}
	if mode == "squat" {
		l, err := Listen(socket)
		if err != nil {
			return err
		}
		fmt.Println("ready")
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return err
			}
			_ = send(conn, hello{Nonce: "x"})
		}
	}
	if mode == "keeper" {
		return keeperProcess(socket, os.Getenv("STORE"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := Dial(socket, slog.New(slog.DiscardHandler))
	c.Keep(s, instance)
	if mode == "forged" || mode == "try" {
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			c.mu.Lock()
			err, all := c.err, c.kept[instance] == s.ID
			c.mu.Unlock()
			switch {
			case mode == "try" && (all || err != nil):
				fmt.Println("pid", os.Getpid())
				return nil
			case err != nil:
				return err
			}
		}
	}
	if err := c.Wait(ctx); err != nil {
		return err
	}
	switch mode {
	case "drop":
		_ = c.Close()
	case "exhaust":
		for {
			if _, err := os.Open(os.DevNull); err != nil {
				break
			}
		}
	case "child": // a child that has the connection ends
		conn, err := net.DialUnix(network, nil, &net.UnixAddr{Name: socket, Net: network})
		if err != nil {
			return err
		}
		file, err := conn.File()
		if err != nil {
			return err
		}
		child := exec.Command("/bin/true")
		child.ExtraFiles = []*os.File{file}
		if err := child.Run(); err != nil {
			return err
		}
		_, _, _ = file.Close(), conn.Close(), c.Close()
	case "forget":
		c.Forget(instance)
		for !c.idle() {
			time.Sleep(time.Millisecond)
		}
	}
	fmt.Println("pid", os.Getpid())
	if mode == "exec" {
		return syscall.Exec("/bin/cat", []string{"cat"}, os.Environ())
	}
	return nil
}

// bench is a store, a keeper and the processes that register with it.
type bench struct {
	t      *testing.T
	store  *mem.Store
	socket string
	stop   func() // ends the keeper
	plant  plant.Set
	ended  chan store.Update
	k      *Keeper
	rpc    string // where a keeper in another process finds the store
	ttl    time.Duration
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, store: mem.New(mem.Options{}), socket: filepath.Join(t.TempDir(), "keeper"), ended: make(chan store.Update, 100), ttl: time.Hour}
	t.Cleanup(b.store.Close)
	b.keeper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	synced := make(chan struct{})
	go func() {
		for u, err := range b.store.Watch(ctx, store.Scope{"*"}) {
			switch {
			case err != nil:
				return
			case u.Kind == store.Synced:
				close(synced)
			case u.Kind == store.SessionEnded:
				b.ended <- u
			}
		}
	}()
	<-synced
	return b
}

// process runs the keeper in a process of its own, and returns it. It ends with the test.
func (b *bench) process() *exec.Cmd {
	b.t.Helper()
	b.stop()
	if b.rpc == "" {
		b.rpc = filepath.Join(b.t.TempDir(), "store")
		l, err := net.Listen("unix", b.rpc)
		if err != nil {
			b.t.Fatal(err)
		}
		server := rpc.NewServer()
		if err := server.RegisterName("Store", storeServer{b.store}); err != nil {
			b.t.Fatal(err)
		}
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go server.ServeConn(conn)
			}
		}()
		b.t.Cleanup(func() { _ = l.Close() })
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), modeEnv+"=keeper", "SOCKET="+b.socket, "STORE="+b.rpc)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		b.t.Fatalf("the keeper said %q: %v", line, err)
	}
	return cmd
}

// storeServer lends the store of the test to a keeper in another process.
type storeServer struct{ st store.Store }

func (s storeServer) Session(id store.SessionID, to *store.Session) (err error) {
	*to, err = s.st.Session(context.Background(), id)
	return err
}

func (s storeServer) End(id store.SessionID, _ *bool) error {
	return s.st.End(context.Background(), id, store.Died)
}

type storeClient struct {
	store.Store // nil: a keeper calls no other method
	c           *rpc.Client
}

func (s storeClient) Session(_ context.Context, id store.SessionID) (to store.Session, err error) {
	err = s.c.Call("Store.Session", id, &to)
	return to, err
}

func (s storeClient) End(_ context.Context, id store.SessionID, _ store.Reason, _ ...store.Record) error {
	return s.c.Call("Store.End", id, new(bool))
}

func keeperProcess(socket, address string) error {
	c, err := rpc.Dial("unix", address)
	if err != nil {
		return err
	}
	l, err := Listen(socket)
	if err != nil {
		return err
	}
	free := make(chan os.Signal, 1)
	signal.Notify(free, syscall.SIGUSR1)
	go func() {
		for range free {
			debug.FreeOSMemory()
		}
	}()
	fmt.Println("ready")
	return NewKeeper(storeClient{c: c}, slog.New(slog.DiscardHandler)).Serve(context.Background(), l)
}

func (b *bench) keeper(change ...func(*Keeper)) {
	b.t.Helper()
	b.serve(b.listen(), change...)
}

func (b *bench) listen() *net.UnixListener {
	b.t.Helper()
	l, err := Listen(b.socket)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

func (b *bench) serve(l *net.UnixListener, change ...func(*Keeper)) {
	k := NewKeeper(b.store, slog.New(slog.DiscardHandler))
	k.plant, b.k = b.plant, k
	for _, f := range change {
		f(k)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := k.Serve(ctx, l); err != nil {
			b.t.Error(err)
		}
	}()
	b.stop = func() { cancel(); <-done }
	b.t.Cleanup(b.stop)
}

func (b *bench) open(id string) (store.Session, string) {
	b.t.Helper()
	instance := rand.Text()
	s, err := b.store.Open(b.t.Context(), tenure.Candidate{ID: id}, b.ttl, store.OpenOptions{Scope: store.Scope{"g"}, Instance: instance})
	if err != nil {
		b.t.Fatal(err)
	}
	return s, instance
}

// run starts a process for the session. It returns the process id of whoever uses the session,
// or the error that it reports.
func (b *bench) run(mode string, s store.Session, instance string) (int, error) {
	b.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), modeEnv+"="+mode, "SOCKET="+b.socket, "SESSION="+string(s.ID), "DEPLOYMENT="+s.Deployment, "INSTANCE="+instance)
	in, err := cmd.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	r, w, err := os.Pipe() // not StdoutPipe: a process that this one has started writes to it too
	if err != nil {
		b.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	_ = w.Close()
	waited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(waited) }()
	b.t.Cleanup(func() { _, _ = in.Close(), r.Close(); <-waited })
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		b.t.Fatalf("%s said %q: %v", mode, line, err)
	}
	var pid int
	if _, err := fmt.Sscanf(line, "pid %d", &pid); err != nil {
		return 0, errors.New(strings.TrimSpace(line))
	}
	return pid, nil
}

// died waits for the end of a session, and reports whether it came.
func (b *bench) died(id store.SessionID, within time.Duration) bool {
	b.t.Helper()
	timeout := time.After(within)
	for {
		select {
		case u := <-b.ended:
			if u.Session.ID != id {
				continue
			}
			return u.Reason == store.Died
		case <-timeout:
			return false
		}
	}
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// A process that is killed loses its session at once, whatever its connection is like, and also if
// the keeper was restarted meanwhile.
func TestDeath(t *testing.T) {
	for _, mode := range []string{"stay", "drop", "exec"} {
		t.Run(mode, func(t *testing.T) {
			b := newBench(t)
			s, instance := b.open("node-1")
			pid, err := b.run(mode, s, instance)
			if err != nil {
				t.Fatal(err)
			}
			kill(t, pid, syscall.SIGKILL)
			if !b.died(s.ID, patience) {
				t.Error("the session of a killed process lives")
			}
		})
	}
	t.Run("keeper restarted", func(t *testing.T) {
		b := newBench(t)
		s, instance := b.open("node-1")
		c := Dial(b.socket, slog.New(slog.DiscardHandler))
		c.Keep(s, instance)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := c.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		b.stop()
		b.keeper()
		other, secret := b.open("node-2") // registered by the new connection only
		c.Keep(other, secret)
		if err := c.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		if b.died(s.ID, 0) || b.died(other.ID, 0) {
			t.Error("the session of a living process was ended")
		}
	})
}

// living are the situations in which a process that lives looks dead, and the bugs that fall for
// them.
var living = map[string]struct {
	bug  plant.Bug
	play func(b *bench) store.SessionID
}{
	"stopped": {plant.DeathFromSilence, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		pid := b.must("stay", s, instance)
		kill(b.t, pid, syscall.SIGSTOP)
		b.t.Cleanup(func() { kill(b.t, pid, syscall.SIGCONT) })
		return s.ID
	}},
	"frozen": {plant.DeathFromSilence, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		freeze(b.t, b.must("stay", s, instance))
		return s.ID
	}},
	"address refuses, as after a move or behind a firewall": {plant.None, func(b *bench) store.SessionID {
		return b.hinted(func(net.Listener) {})
	}},
	"port used by another process": {plant.None, func(b *bench) store.SessionID {
		return b.hinted(func(l net.Listener) {
			if next, err := net.Listen("tcp", l.Addr().String()); err == nil { // or yet another was faster
				b.t.Cleanup(func() { _ = next.Close() })
			}
		})
	}},
	"connection closed": {plant.DeathFromFIN, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		b.must("drop", s, instance)
		return s.ID
	}},
	"another program": {plant.DeathFromFIN, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		b.must("exec", s, instance)
		return s.ID
	}},
	"registration withdrawn": {plant.DeathFromForget, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		b.must("forget", s, instance)
		return s.ID
	}},
	"connection of a dead process": {plant.PidReuse, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		b.must("fork", s, instance)
		return s.ID
	}},
	"reused pid": {plant.PidReuse, func(b *bench) store.SessionID {
		b.stop()
		l := b.listen()
		s, instance := b.open("node-1")
		r, w, err := os.Pipe()
		if err != nil {
			b.t.Fatal(err)
		}
		in, keep, err := os.Pipe()
		if err != nil {
			b.t.Fatal(err)
		}
		b.t.Cleanup(func() { _, _, _ = in.Close(), keep.Close(), r.Close() })
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), modeEnv+"=orphan", "SOCKET="+b.socket, "SESSION="+string(s.ID), "DEPLOYMENT="+s.Deployment, "INSTANCE="+instance)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, w, os.Stderr
		if err := cmd.Run(); err != nil {
			b.t.Fatal(err)
		}
		_ = w.Close()
		other := reuse(b.t, cmd.Process.Pid)
		b.serve(l)
		if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || !strings.HasPrefix(line, "pid") {
			b.t.Fatalf("%q, %v", line, err)
		}
		if err := other.Process.Kill(); err != nil {
			b.t.Fatal(err)
		}
		_ = other.Wait()
		return s.ID
	}},
	"next process of the candidate": {plant.DeathOfNextProcess, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		pid := b.must("stay", s, instance)
		if err := b.store.End(b.t.Context(), s.ID, store.Resigned); err != nil {
			b.t.Fatal(err)
		}
		next, secret := b.open("node-1")
		b.must("stay", next, secret)
		kill(b.t, pid, syscall.SIGKILL)
		return next.ID
	}},
	"duplicate registration": {plant.DeathOfDuplicate, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		b.must("stay", s, instance)
		kill(b.t, b.must("try", s, instance), syscall.SIGKILL)
		return s.ID
	}},
	"never registered": {plant.DeathOfUnregistered, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		other, _ := b.open("node-2")
		kill(b.t, b.must("stay", s, instance), syscall.SIGKILL)
		return other.ID
	}},
	"no descriptor left": {plant.None, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		b.must("exhaust", s, instance)
		return s.ID
	}},
	"child with the connection": {plant.None, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		b.must("child", s, instance)
		return s.ID
	}},
	"keeper killed": {plant.None, func(b *bench) store.SessionID {
		keeper := b.process()
		s, instance := b.open("node-1")
		b.must("stay", s, instance)
		kill(b.t, keeper.Process.Pid, syscall.SIGKILL)
		_ = keeper.Wait()
		return s.ID
	}},
	"keeper killed and started": {plant.None, func(b *bench) store.SessionID {
		keeper := b.process()
		s, instance := b.open("node-1")
		b.must("stay", s, instance)
		kill(b.t, keeper.Process.Pid, syscall.SIGKILL)
		_ = keeper.Wait()
		b.process()
		return s.ID
	}},
	"keeper paused": {plant.None, func(b *bench) store.SessionID {
		keeper := b.process()
		s, instance := b.open("node-1")
		b.must("stay", s, instance)
		kill(b.t, keeper.Process.Pid, syscall.SIGSTOP)
		time.AfterFunc(20*time.Millisecond, func() { _ = keeper.Process.Signal(syscall.SIGCONT) })
		return s.ID
	}},
	"keeper restarted": {plant.None, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		b.must("stay", s, instance)
		b.stop()
		b.keeper()
		return s.ID
	}},
	"forged registration": {plant.None, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		b.must("stay", s, instance)
		if pid, err := b.run("forged", s, rand.Text()); err == nil {
			b.t.Errorf("process %d registered the session of another", pid)
		}
		return s.ID
	}},
}

// hinted registers a fenced session with an address that Hints watch. It breaks the connection,
// and the address does not belong to the process any more: that is no death.
func (b *bench) hinted(then func(l net.Listener)) store.SessionID {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	instance := rand.Text()
	s, err := b.store.Open(b.t.Context(), tenure.Candidate{ID: "node-1", Address: l.Addr().String()}, b.ttl, store.OpenOptions{Scope: store.Scope{"g"}, Instance: instance, Fenced: true})
	if err != nil {
		b.t.Fatal(err)
	}
	b.must("stay", s, instance)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); NewHints(b.store, slog.New(slog.DiscardHandler)).Run(ctx, s.Scope) }()
	b.t.Cleanup(func() { cancel(); <-done })
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	conn, err := l.Accept()
	if err != nil {
		b.t.Fatal(err)
	}
	_ = l.Close()
	then(l)
	_ = conn.Close()
	return s.ID
}

// freeze puts a process into a frozen cgroup until the test ends. Only root can do that.
func freeze(t *testing.T, pid int) {
	t.Helper()
	dir, file, frozen, thawed := "/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"
	if _, err := os.Stat(dir); err != nil {
		dir, file, frozen, thawed = "/sys/fs/cgroup", "cgroup.freeze", "1", "0"
	}
	own, err := os.MkdirTemp(dir, "tenure-test-")
	if err != nil {
		t.Skip(err)
	}
	write := func(path, text string) error { return os.WriteFile(path, []byte(text), 0) }
	if err := errors.Join(write(filepath.Join(own, "cgroup.procs"), strconv.Itoa(pid)), write(filepath.Join(own, file), frozen)); err != nil {
		_ = os.Remove(own)
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(write(filepath.Join(own, file), thawed), write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)), os.Remove(own)); err != nil {
			t.Error(err)
		}
	})
}

// reuse starts a process with an id that another one had. Only root can ask the kernel for that.
func reuse(t *testing.T, pid int) *exec.Cmd {
	t.Helper()
	for range 100 {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			t.Skip(err)
		}
		cmd := exec.Command("/bin/sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if cmd.Process.Pid == pid {
			t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
			return cmd
		}
		_, _ = cmd.Process.Kill(), cmd.Wait()
	}
	t.Skip("the process id was taken")
	return nil
}

func (b *bench) must(mode string, s store.Session, instance string) int {
	b.t.Helper()
	pid, err := b.run(mode, s, instance)
	if err != nil {
		b.t.Fatal(err)
	}
	return pid
}

// No session of a living process ends as died, in TENURE_TRIALS hostile trials at a TTL of 3 s.
func TestTrials(t *testing.T) {
	trials := len(living)
	if s := os.Getenv("TENURE_TRIALS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		trials = n
	}
	closed, kinds := map[string]int{}, slices.Sorted(maps.Keys(living))
	for i := range trials {
		name := kinds[i%len(kinds)]
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ttl = 3 * time.Second
			if b.died(living[name].play(b), 50*time.Millisecond) {
				closed[name]++
			}
		})
	}
	if len(closed) > 0 {
		t.Errorf("sessions of living processes that ended as died: %v", closed)
	}
	t.Logf("%d trials of %d kinds, sessions of living processes that ended as died: %d", trials, len(kinds), len(closed))
}

func TestLiving(t *testing.T) {
	for name, c := range living {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if id := c.play(b); b.died(id, 100*time.Millisecond) {
				t.Error("the session of a living process was ended")
			}
		})
	}
}

// A keeper asks the kernel for the sender of each request: see "connection of a dead process".
// Another deployment, a session that has ended and a nonce that was not given out are refused too.
func TestRefused(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, instance := b.open("node-1")
	for name, ask := range map[string]func(nonce string) request{
		"nonce":      func(string) request { return request{Deployment: s.Deployment, Instance: instance, Session: s.ID} },
		"deployment": func(n string) request { return request{Nonce: n, Deployment: "x", Instance: instance, Session: s.ID} },
		"instance":   func(n string) request { return request{Nonce: n, Deployment: s.Deployment, Session: s.ID} },
		"session": func(n string) request {
			return request{Nonce: n, Deployment: s.Deployment, Instance: instance, Session: "x"}
		},
	} {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, b.socket)
		if err != nil {
			t.Fatal(err)
		}
		var h hello
		if err := receive(conn, &h, time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		m, _ := json.Marshal(ask(h.Nonce))
		if _, err := conn.Write(m); err != nil {
			t.Fatal(err)
		}
		var r reply
		if err := receive(conn, &r, time.Now().Add(patience)); err != nil || r.Error == "" {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		_ = conn.Close()
	}
}

// A process that connects again and again takes one place, and what it forgets is forgotten although
// another connection registered it.
func TestOnePlace(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, instance := b.open("node-1")
	for range 3 * maxConnections {
		c := Dial(b.socket, slog.New(slog.DiscardHandler))
		c.Keep(s, instance)
		if err := c.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	b.k.mu.Lock()
	if b.k.watched != 1 || len(b.k.holders) != 1 {
		t.Errorf("%d places for %d sessions", b.k.watched, len(b.k.holders))
	}
	b.k.mu.Unlock()
	c := Dial(b.socket, slog.New(slog.DiscardHandler))
	defer func() { _ = c.Close() }()
	c.Keep(s, instance)
	if err := c.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	c.Forget(instance)
	for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
		b.k.mu.Lock()
		left := len(b.k.holders)
		b.k.mu.Unlock()
		if left == 0 {
			return
		}
	}
	t.Error("the keeper watches over a session that was forgotten")
}

// A registration that is refused is tried ever less often.
func TestRefusedRests(t *testing.T) {
	b := newBench(t)
	var refused atomic.Int64
	b.stop()
	b.keeper(func(k *Keeper) { k.log, k.store = slog.New(counter{&refused}), slowStore{b.store} })
	c := Dial(b.socket, slog.New(slog.DiscardHandler))
	defer func() { _ = c.Close() }()
	c.Keep(store.Session{ID: "x"}, "y")
	time.Sleep(2 * time.Second)
	if n := refused.Load(); n == 0 || n > 12 {
		t.Errorf("%d tries in 2 s", n)
	}
}

type slowStore struct{ store.Store }

func (s slowStore) Session(ctx context.Context, id store.SessionID) (store.Session, error) {
	time.Sleep(20 * time.Millisecond)
	return s.Store.Session(ctx, id)
}

// counter is a log that counts.
type counter struct{ n *atomic.Int64 }

func (c counter) Enabled(context.Context, slog.Level) bool  { return true }
func (c counter) Handle(context.Context, slog.Record) error { c.n.Add(1); return nil }
func (c counter) WithAttrs([]slog.Attr) slog.Handler        { return c }
func (c counter) WithGroup(string) slog.Handler             { return c }

// A message cannot leave descriptors in the keeper.
func TestDescriptors(t *testing.T) {
	b := newBench(t)
	count := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := count()
	for range 20 {
		conn, err := net.DialUnix(network, nil, &net.UnixAddr{Name: b.socket, Net: network})
		if err != nil {
			t.Fatal(err)
		}
		var h hello
		if err := receive(conn, &h, time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		m, _ := json.Marshal(request{Nonce: h.Nonce, Instance: "x"})
		if _, _, err := conn.WriteMsgUnix(m, syscall.UnixRights(0, 1, 2), nil); err != nil {
			t.Fatal(err)
		}
		var r reply
		if err := receive(conn, &r, time.Now().Add(patience)); err != nil || r.Error == "" {
			t.Errorf("%+v, %v", r, err)
		}
		_ = conn.Close()
	}
	if n := count(); n > before+20 {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

// A keeper does not replace what it did not leave behind.
func TestListen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "important")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	stream := filepath.Join(t.TempDir(), "stream") // another program's socket
	l, err := net.Listen("unix", stream)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, path := range []string{"", file, stream} {
		if l, err := Listen(path); err == nil {
			_ = l.Close()
			t.Errorf("a keeper listens on %q", path)
		}
		if path == "" {
			continue
		}
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}

// A program that never calls Main cannot be started as a keeper.
func TestStartWithoutMain(t *testing.T) {
	if c, err := Start(nil); err == nil {
		_ = c.Close()
		t.Error("the program was started a second time")
	}
}

// Another user who takes the name of a socket without a file is not told the instance.
func TestSquatter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	name := "@tenure-test-" + rand.Text()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), modeEnv+"=squat", "SOCKET="+name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("%q", lines.Text())
	}
	c := Dial(name, slog.New(slog.DiscardHandler))
	defer func() { _ = c.Close() }()
	c.Keep(store.Session{ID: "x"}, "secret")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := c.Wait(ctx); err == nil || !strings.Contains(err.Error(), "65534") {
		t.Error(err)
	}
}
