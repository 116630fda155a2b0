package embeddedetcd

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenurehq/tenure/internal/child"
)

// The zero Config is an engine in a private directory that listens on a socket in it and on
// no port. After a stop no goroutine and no directory is left.
func TestZeroConfig(t *testing.T) {
	var said bytes.Buffer
	e := mustStart(t, Config{Logger: slog.New(slog.NewTextHandler(&said, nil))})
	if at := e.Endpoints(); len(at) != 1 || !strings.HasPrefix(at[0], "unix://"+e.DataDir()) || e.PeerURL() != "" {
		t.Errorf("listens on %q and for peers on %q", at, e.PeerURL())
	}
	info, err := os.Stat(e.DataDir())
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("data directory: %v, %v, want mode 0700", info.Mode(), err)
	}
	c := connect(t, e.Endpoints()...)
	put(t, c, "k", "v")
	if got := get(t, c); got != "v" {
		t.Errorf("got %q", got)
	}
	if len(e.Notices()) != 1 || strings.Count(said.String(), "level=WARN") != 1 {
		t.Errorf("notices %q, log %q", e.Notices(), &said)
	}

	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("stopped twice: %v", err)
	}
	if err, open := <-e.Err(); open {
		t.Errorf("stopped, and Err says: %v", err)
	}
	if left := tree(t, e.DataDir()); len(left) > 1 {
		t.Errorf("left: %q", left)
	}
	nothingRuns(t)
}

// A given directory is created and keeps its data across a stop, also if the ports change.
func TestRestartKeepsData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	e := mustStart(t, Config{DataDir: dir})
	put(t, connect(t, e.Endpoints()...), "k", "v")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("data directory: %v, %v", info, err)
	}
	e = mustStart(t, Config{DataDir: dir, ClientURL: free(t)})
	if got := get(t, connect(t, e.Endpoints()...)); got != "v" {
		t.Errorf("after a restart: %q", got)
	}
}

// Ticks and election set the shortest TTL: 2 s by default, 1 s when they are fast.
func TestShortestTTL(t *testing.T) {
	for want, c := range map[int64]Config{2: {}, 1: fast(Config{})} {
		e := mustStart(t, c)
		r, err := connect(t, e.Endpoints()...).Grant(within(t, 5*time.Second), 1)
		if err != nil || r.TTL != want {
			t.Errorf("election %v: TTL %v, %v, want %d", c.Election, r, err, want)
		}
	}
}

// Stop does not wait for the watches and keep-alives of clients, which do not end by
// themselves.
func TestStopEndsStreams(t *testing.T) {
	e := mustStart(t, Config{})
	c := connect(t, e.Endpoints()...)
	watch := c.Watch(t.Context(), "k", clientv3.WithCreatedNotify())
	<-watch
	grant, err := c.Grant(within(t, 5*time.Second), 60)
	if err != nil {
		t.Fatal(err)
	}
	beats, err := c.KeepAlive(t.Context(), grant.ID)
	if err != nil {
		t.Fatal(err)
	}
	<-beats
	began := time.Now()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("stopping took %v", took)
	}
	select {
	case r, open := <-watch:
		t.Errorf("the watch was ended by a member that stopped, instead of going on elsewhere: %v, open %v", r.Err(), open)
	case <-time.After(100 * time.Millisecond):
	}
}

// A stream that ends because of the stop is "unavailable" to its client, which then goes to
// another member; "cancelled" would end its watch. Other streams keep their own error, and
// late calls are refused.
func TestDrain(t *testing.T) {
	d := newDrain()
	own := errors.New("own")
	if err := d.stream(nil, idleStream{ctx: t.Context()}, nil, func(any, grpc.ServerStream) error { return own }); !errors.Is(err, own) {
		t.Errorf("a stream that ended by itself: %v", err)
	}
	ended := make(chan error)
	waits := make(chan struct{})
	go func() {
		ended <- d.stream(nil, idleStream{ctx: t.Context()}, nil, func(_ any, s grpc.ServerStream) error {
			close(waits)
			<-s.Context().Done()
			return s.Context().Err()
		})
	}()
	<-waits
	d.begin()
	if err := <-ended; status.Code(err) != codes.Unavailable {
		t.Errorf("a stream that was ended: %v", err)
	}
	_, err := d.unary(t.Context(), nil, nil, func(context.Context, any) (any, error) { return nil, nil })
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a call that came too late: %v", err)
	}
}

type idleStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s idleStream) Context() context.Context { return s.ctx }

// Three members in one process are one engine.
func TestThreeInProcess(t *testing.T) {
	var members []string
	names := []string{"a", "b", "c"}
	for _, name := range names {
		members = append(members, name+"="+free(t))
	}
	engines := make([]*Engine, len(names))
	var starts sync.WaitGroup
	for i, name := range names {
		starts.Go(func() {
			e, err := Start(t.Context(), fast(Config{Name: name, Members: members, DataDir: t.TempDir(), ReadyTimeout: 20 * time.Second}))
			if err != nil {
				t.Error(err)
				return
			}
			engines[i] = e
		})
	}
	starts.Wait()
	if t.Failed() {
		return
	}
	a, c := connect(t, engines[0].Endpoints()...), connect(t, engines[2].Endpoints()...)
	put(t, a, "k", "v")
	if got := get(t, c); got != "v" {
		t.Errorf("at another member: %q", got)
	}
	_, _ = a.Close(), c.Close()
	stopAll(t, engines...)
	nothingRuns(t)
}

// A cancelled start returns an error that says so, and leaves nothing behind.
func TestStartCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("changed my mind")
	time.AfterFunc(200*time.Millisecond, func() { cancel(why) })
	dir := filepath.Join(t.TempDir(), "d")
	members := []string{"a=" + free(t), "b=" + free(t), "c=" + free(t)}
	began := time.Now()
	_, err := Start(ctx, Config{Name: "a", DataDir: dir, Members: members})
	if !errors.Is(err, why) || !errors.Is(err, ErrNotReady) {
		t.Errorf("error: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	nothingRuns(t)
}

// etcd's own log is passed on only in debug mode.
func TestDebug(t *testing.T) {
	for _, debug := range []bool{false, true} {
		var said child.Buffer
		e := mustStart(t, Config{Debug: debug, Logger: slog.New(slog.NewTextHandler(&said, nil))})
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if got := strings.Contains(said.String(), "etcd: "); got != debug {
			t.Errorf("debug %v: %s", debug, said.String())
		}
	}
}

// If the disk fills up while the member runs, the error is on Err, where etcd would end the
// process. Nothing is acknowledged from then on, and Stop is bounded.
func TestDiskFullWhileRunning(t *testing.T) {
	// In a separate process, because etcd may leave goroutines behind.
	const role = "ENGINE_TEST_DISK"
	dir := os.Getenv(role)
	if dir == "" {
		dir = mount(t, "176m", 0)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), self, "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), role+"="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	e := mustStart(t, Config{DataDir: filepath.Join(dir, "d"), StopTimeout: 2 * time.Second})
	c := connect(t, e.Endpoints()...)
	put(t, c, "k", "v")
	ballast, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = ballast.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	_ = ballast.Close()

	big := strings.Repeat("x", 1<<20)
	var failed error
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := c.Put(ctx, "big", big)
		cancel()
		if err != nil {
			break
		}
	}
	select {
	case failed = <-e.Err():
	case <-time.After(5 * time.Second):
		t.Fatal("the disk is full and Err is silent")
	}
	if !errors.Is(failed, syscall.ENOSPC) || !strings.Contains(failed.Error(), e.DataDir()) {
		t.Errorf("Err says %v: want the directory and the cause", failed)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.Put(ctx, "k", "later"); err == nil {
		t.Error("a member that failed acknowledged a write")
	}
	began := time.Now()
	_ = e.Close()
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("stopping took %v, the bound is 2s", took)
	}
}

// A fatal error of etcd ends one goroutine instead of the process, and its cause is kept.
func TestFatal(t *testing.T) {
	for name, end := range map[string]func(*zap.Logger){
		"fatal": func(lg *zap.Logger) { lg.Fatal("failed to save", zap.Error(syscall.EIO)) },
		"panic": func(lg *zap.Logger) { lg.Panic("failed to save", zap.Error(syscall.EIO)) },
	} {
		f := newFatal()
		went, done := false, make(chan struct{})
		go func() {
			defer close(done)
			end(f.logger(slog.New(slog.DiscardHandler), false))
			went = true
		}()
		<-done
		select {
		case <-f.done:
		default:
			t.Fatalf("%s: no fatal error", name)
		}
		if went || !errors.Is(f.err, syscall.EIO) || f.err.Error() != "failed to save: input/output error" {
			t.Errorf("%s: went on %v, %v", name, went, f.err)
		}
	}
}

// With a CA, clients need a certificate.
func TestTLS(t *testing.T) {
	files := certificates(t)
	e := mustStart(t, Config{ClientURL: "127.0.0.1:0", PeerURL: "127.0.0.1:0", ClientTLS: files.tls, PeerTLS: files.tls})
	if !strings.HasPrefix(e.Endpoints()[0], "https://") {
		t.Fatalf("serves %s", e.Endpoints()[0])
	}
	for _, tt := range []struct {
		name string
		cert bool
	}{{"with a certificate", true}, {"without", false}} {
		c, err := clientv3.New(clientv3.Config{Endpoints: e.Endpoints(), TLS: files.client(t, tt.cert)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err = c.Put(ctx, "k", "v")
		cancel()
		_ = c.Close()
		if (err == nil) != tt.cert {
			t.Errorf("a client %s: %v", tt.name, err)
		}
	}
	began := time.Now()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("stopping took %v", took)
	}
}

// If a port is taken between its choice and its use, start gets an error that it can
// recognise and retry with another port. Nothing is left of the attempt.
func TestPortTaken(t *testing.T) {
	p, err := Config{ClientURL: "127.0.0.1:0", PeerURL: "127.0.0.1:0"}.plan()
	if err != nil {
		t.Fatal(err)
	}
	q, err := p.withPorts()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := openDataDir("")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.abandon(false)
	l, err := net.Listen("tcp", q.client.Host)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := launch(t.Context(), q, dir); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("error: %v", err)
	}
	_ = l.Close()
	canListen(t, q.client.String())
	canListen(t, q.peer.String())
	nothingRuns(t)
}

// Zeros become free ports in every place that names them, different ones each time.
func TestChosenPorts(t *testing.T) {
	p, err := Config{ClientURL: "127.0.0.1:0", PeerURL: "127.0.0.1:0"}.plan()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range 3 {
		q, err := p.withPorts()
		if err != nil {
			t.Fatal(err)
		}
		if q.client.Port() == "0" || q.peer.Port() == "0" || q.client.Port() == q.peer.Port() || q.members[0].url != q.peer || q.advertise != q.client {
			t.Fatalf("client %s, peer %s, member %s, advertised %s", q.client, q.peer, q.members[0], q.advertise)
		}
		seen[q.client.Port()] = true
		l, err := net.Listen("tcp", q.client.Host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	if len(seen) != 3 || p.client.Port() != "0" {
		t.Errorf("chosen %v from %s", seen, p.client)
	}
}
