//go:build unix

package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// health asks a member, over HTTP, for a read that needs a quorum.
func health(t *testing.T, endpoint string, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/health", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	// A new connection, since an old one might not be affected by the fault.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(`"health":"true"`)) {
		return fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	return nil
}

// eventually waits until a condition holds.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	const within = 5 * time.Second
	deadline := time.Now().Add(within)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", within, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Three processes form one engine: it works without one of them and not without two. Members
// can be paused and killed, and a restarted member has its old address.
func TestClusterFaults(t *testing.T) {
	e := Cluster(t, 3, FastTicks())
	a, b, c := e.Members[0], e.Members[1], e.Members[2]
	for _, m := range e.Members {
		if err := health(t, m.Endpoint(), 5*time.Second); err != nil {
			t.Errorf("%s: %v", m.Name(), err)
		}
		if _, err := os.Stat(filepath.Join(m.DataDir(), "member")); err != nil {
			t.Errorf("%s keeps no data where it says: %v", m.Name(), err)
		}
	}

	a.Kill()
	if err := health(t, a.Endpoint(), time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("killed, and %s says: %v", a.Name(), err)
	}
	eventually(t, func() error { return health(t, b.Endpoint(), time.Second) })

	c.Pause()
	if err := health(t, c.Endpoint(), 300*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("paused, and %s says: %v", c.Name(), err)
	}
	if err := health(t, b.Endpoint(), 500*time.Millisecond); err == nil {
		t.Error("one member of three calls itself healthy")
	}
	c.Resume()
	eventually(t, func() error { return health(t, b.Endpoint(), time.Second) })

	old := c.PID()
	a.Restart()
	c.Restart()
	if c.PID() == old || c.PID() == 0 {
		t.Errorf("restarted, and process %d is now %d", old, c.PID())
	}
	for _, m := range e.Members {
		if err := health(t, m.Endpoint(), 5*time.Second); err != nil {
			t.Errorf("%s: %v", m.Name(), err)
		}
	}
}

// A restored backup has the old data, and nothing that was written since.
func TestRestoreData(t *testing.T) {
	e := Cluster(t, 1, FastTicks())
	m := e.Members[0]
	b := e.CopyData()
	later := filepath.Join(m.DataDir(), "later")
	if err := os.WriteFile(later, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e.RestoreData(b)
	if _, err := os.Stat(later); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file from after the backup: %v", err)
	}
	if err := health(t, m.Endpoint(), 5*time.Second); err != nil {
		t.Error(err)
	}
}

// A copy has the same bytes, and its zeros take no disk space.
func TestCopyTree(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	want := append(append(make([]byte, 8<<20), "middle"...), make([]byte, 4<<20)...)
	for name, text := range map[string][]byte{"sub/sparse": want, "empty": nil, "small": []byte("x")} {
		path := filepath.Join(from, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyTree(from, to); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"sub/sparse": want, "empty": nil, "small": []byte("x")} {
		got, err := os.ReadFile(filepath.Join(to, name))
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %d bytes, want %d (%v)", name, len(got), len(text), err)
		}
	}
	info, err := os.Stat(filepath.Join(to, "sub", "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Blocks*512 > 1<<20 {
		t.Errorf("12 MiB of zeros take %d bytes", s.Blocks*512)
	}
}

// A member ends with the process that started it, even if that was killed or the member is
// paused.
func TestDiesWithParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("a paused process can be reached on Linux only")
	}
	if os.Getenv("ENGINETEST_PARENT") != "" {
		e := Cluster(t, 1, FastTicks())
		e.Members[0].Pause()
		fmt.Printf("pid %d\n", e.Members[0].PID())
		select {}
	}
	Program(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.CommandContext(t.Context(), self, "-test.run", "^TestDiesWithParent$")
	parent.Env = append(os.Environ(), "ENGINETEST_PARENT=1", "TMPDIR="+t.TempDir()) // it cannot clean up
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscanf(out, "pid %d\n", &pid); err != nil {
		t.Fatalf("the parent said nothing: %v", err)
	}
	if !child.Paused(pid) {
		t.Fatalf("member %d is not paused", pid)
	}
	_ = parent.Process.Kill()
	_ = parent.Wait()
	eventually(t, func() error {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(stat), ") Z") {
			return fmt.Errorf("member lives on: %s", stat)
		}
		return nil
	})
}

// recorder records what a helper would do to a test.
type recorder struct {
	testing.TB
	failed, skipped string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
}

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
}

// Without an engine a test is skipped; it fails if CI is set.
func TestMissing(t *testing.T) {
	why := errors.New("no compiler")
	t.Setenv("CI", "")
	var laptop recorder
	missing(&laptop, why)
	if laptop.failed != "" || !strings.Contains(laptop.skipped, "no compiler") {
		t.Errorf("on a laptop: failed %q, skipped %q", laptop.failed, laptop.skipped)
	}
	t.Setenv("CI", "true")
	var ci recorder
	missing(&ci, why)
	if ci.skipped != "" || !strings.Contains(ci.failed, "no compiler") {
		t.Errorf("in CI: failed %q, skipped %q", ci.failed, ci.skipped)
	}
}

// The repository is found from every folder in it, and from no other.
func TestRepository(t *testing.T) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	top := filepath.Dir(filepath.Dir(dir))
	for _, from := range []string{top, dir, filepath.Join(top, "server", "cmd", "engine")} {
		if got, err := child.Repository(from); err != nil || got != top {
			t.Errorf("from %s: %q, %v", from, got, err)
		}
	}
	if got, err := child.Repository(t.TempDir()); err == nil {
		t.Errorf("found one in an empty folder: %s", got)
	}
}

// echo serves connections that answer every line with itself.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

type caller struct {
	t *testing.T
	net.Conn
}

func dial(t *testing.T, addr string) caller {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return caller{t, c}
}

func (c caller) say(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// receive returns the answer, and how long it took.
func (c caller) receive(n int, within time.Duration) (string, time.Duration, error) {
	c.t.Helper()
	began := time.Now()
	if err := c.SetReadDeadline(began.Add(within)); err != nil {
		c.t.Fatal(err)
	}
	buf := make([]byte, n)
	m, err := io.ReadFull(c, buf)
	return string(buf[:m]), time.Since(began), err
}

func (c caller) receives(want string) {
	c.t.Helper()
	if got, _, err := c.receive(len(want), 5*time.Second); got != want {
		c.t.Fatalf("heard %q, want %q (%v)", got, want, err)
	}
}

func (c caller) receivesNothing() {
	c.t.Helper()
	if got, _, err := c.receive(1, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("heard %q, %v: want silence", got, err)
	}
}

// A cut holds back data in its direction, on old and new connections. When it is healed the data
// arrives in order.
func TestProxyCut(t *testing.T) {
	p := NewProxy(t, echo(t))
	c := dial(t, p.Addr())
	c.say("one")
	c.receives("one")

	p.Cut()
	c.say("two")
	c.receivesNothing()
	fresh := dial(t, p.Addr())
	fresh.say("new")
	fresh.receivesNothing()
	eventually(t, func() error {
		if up, down := p.Held(Up), p.Passed(Down); up != 3 || down != 3 {
			return fmt.Errorf("%d bytes held on the way up, %d passed down, want 3 and 3", up, down)
		}
		return nil
	})
	p.Heal()
	c.receives("two")
	fresh.receives("new")

	p.CutOneWay(Down)
	c.say("three")
	c.receivesNothing()
	eventually(t, func() error {
		if up, down := p.Passed(Up), p.Held(Down); up != 14 || down != 5 {
			return fmt.Errorf("%d bytes passed up, %d held on the way down, want 14 and 5", up, down)
		}
		return nil
	})
	p.Heal()
	c.receives("three")
	// The bytes may arrive before the proxy has counted them.
	eventually(t, func() error {
		if up, down := p.Held(Up), p.Held(Down); up != 0 || down != 0 {
			return fmt.Errorf("healed, and %d and %d bytes are held", up, down)
		}
		return nil
	})
}

// A delay is at least what was asked for, in one direction, and keeps the order.
func TestProxyDelay(t *testing.T) {
	p := NewProxy(t, echo(t))
	c := dial(t, p.Addr())
	const by = 400 * time.Millisecond
	p.Delay(Down, by)
	c.say("a")
	c.say("b")
	got, took, err := c.receive(2, 5*time.Second)
	if got != "ab" || took < by-10*time.Millisecond {
		t.Errorf("heard %q after %v (%v), want ab after %v", got, took, err, by)
	}
	p.Heal()
	c.say("c")
	if _, took, err := c.receive(1, 5*time.Second); err != nil || took > by {
		t.Errorf("healed, and it took %v (%v)", took, err)
	}
}

// Refuse resets open connections, even cut ones, and refuses new ones. After Heal the proxy
// serves at the same address. Break does not affect new connections.
func TestProxyRefuse(t *testing.T) {
	p := NewProxy(t, echo(t))
	c := dial(t, p.Addr())
	c.say("one")
	c.receives("one")
	p.Cut()
	c.say("two")
	eventually(t, func() error {
		if n := p.Held(Up); n != 3 {
			return fmt.Errorf("%d bytes held, want 3", n)
		}
		return nil
	})
	p.Refuse()
	if _, _, err := c.receive(1, 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("refused, and an open connection hears: %v", err)
	}
	if c, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("refused, and a new connection is %v, %v", c, err)
	}
	eventually(t, func() error {
		if n := p.Held(Up); n != 0 {
			return fmt.Errorf("broken, and %d bytes are held", n)
		}
		return nil
	})
	p.Heal()
	c = dial(t, p.Addr())
	c.say("three")
	c.receives("three")

	p.Break()
	if _, _, err := c.receive(1, 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("broken, and an open connection hears: %v", err)
	}
	c = dial(t, p.Addr())
	c.say("four")
	c.receives("four")
}

// A client reaches a member through a proxy, and a cut of the proxy affects only that client.
func TestMemberProxy(t *testing.T) {
	e := Cluster(t, 1, FastTicks())
	m := e.Members[0]
	p := m.Proxy()
	if err := health(t, p.Endpoint(), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if err := health(t, p.Endpoint(), 200*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cut, and through the proxy: %v", err)
	}
	if err := health(t, m.Endpoint(), 5*time.Second); err != nil {
		t.Errorf("past the proxy: %v", err)
	}
}
