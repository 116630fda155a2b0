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
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	case "forked":
		conn, err := net.FileConn(os.NewFile(3, "connection"))
		if err != nil {
			return err
		}
		b, _ := json.Marshal(request{Nonce: os.Getenv("NONCE"), Deployment: s.Deployment, Instance: instance, Session: s.ID})
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
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := Dial(socket, slog.New(slog.DiscardHandler))
	c.Keep(s, instance)
	if mode == "forged" {
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			c.mu.Lock()
			err := c.err
			c.mu.Unlock()
			if err != nil {
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
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, store: mem.New(mem.Options{}), socket: filepath.Join(t.TempDir(), "keeper"), ended: make(chan store.Update, 100)}
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

func (b *bench) keeper() {
	b.t.Helper()
	l, err := Listen(b.socket)
	if err != nil {
		b.t.Fatal(err)
	}
	k := NewKeeper(b.store, slog.New(slog.DiscardHandler))
	k.plant = b.plant
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
	s, err := b.store.Open(b.t.Context(), tenure.Candidate{ID: id}, time.Hour, store.OpenOptions{Scope: store.Scope{"g"}, Instance: instance})
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
			if u.Reason != store.Died {
				b.t.Errorf("the session ended with reason %q", u.Reason)
			}
			return true
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
	"forged registration": {plant.None, func(b *bench) store.SessionID {
		s, instance := b.open("node-1")
		b.must("stay", s, instance)
		if pid, err := b.run("forged", s, rand.Text()); err == nil {
			b.t.Errorf("process %d registered the session of another", pid)
		}
		return s.ID
	}},
}

func (b *bench) must(mode string, s store.Session, instance string) int {
	b.t.Helper()
	pid, err := b.run(mode, s, instance)
	if err != nil {
		b.t.Fatal(err)
	}
	return pid
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
