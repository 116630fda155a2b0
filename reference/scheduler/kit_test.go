package scheduler_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/client"
	"github.com/tenurehq/tenure/reference/ledger/ledgerhttp"
	"github.com/tenurehq/tenure/reference/scheduler"
	"github.com/tenurehq/tenure/reference/worker"
)

const group = "billing"

func at(token fence.Token) fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: group, Token: token}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// rig is a real ledger, and leaders of it.
type rig struct {
	t *testing.T
	*client.Client
}

func newRig(t *testing.T) *rig {
	t.Helper()
	l, err := ledger.Open(t.Context(), ledger.Config{DB: filepath.Join(t.TempDir(), "l.db"), Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(ledgerhttp.Handler(l, 0))
	c, err := client.New(client.Config{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		server.Close()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return &rig{t, c}
}

// writer writes with a stamp. After it is dead, its writes are lost. After its term has
// ended, only its last writes are made.
type writer struct {
	c     *client.Client
	stamp fence.Stamp
	dead  atomic.Bool
	over  atomic.Bool
}

func (w *writer) Write(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	if w.over.Load() {
		return ledgerapi.Answer{}, &tenure.EndedError{Group: group, Token: w.stamp.Token, Cause: tenure.ErrResigned}
	}
	return lastWriter{w}.Write(ctx, writes...)
}

// lastWriter is the WriteLast of a writer.
type lastWriter struct{ *writer }

func (w lastWriter) Write(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	if w.dead.Load() {
		return ledgerapi.Answer{}, ledgerapi.ErrUnknown
	}
	return w.c.Apply(context.WithoutCancel(ctx), ledgerapi.Batch{Resource: group, Stamp: w.stamp, Writes: writes})
}

// leading is a running Lead.
type leading struct {
	*scheduler.Scheduler
	w     *writer
	stop  context.CancelFunc
	ended chan error
}

func (r *rig) lead(s *scheduler.Scheduler, token fence.Token) *leading {
	r.t.Helper()
	if err := r.Seal(r.t.Context(), group, at(token)); err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(r.t.Context())
	l := &leading{Scheduler: s, w: &writer{c: r.Client, stamp: at(token)}, stop: stop, ended: make(chan error, 1)}
	loaded := make(chan struct{})
	go func() { l.ended <- s.Lead(ctx, l.w, lastWriter{l.w}, at(token), func() { close(loaded) }) }()
	select {
	case <-loaded:
	case err := <-l.ended:
		r.t.Fatal(err)
	}
	r.t.Cleanup(stop)
	return l
}

// end stops the leader in order.
func (l *leading) end(t *testing.T) {
	t.Helper()
	l.w.over.Store(true)
	l.stop()
	var over *tenure.EndedError
	if err := l.wait(t); err != nil && !errors.As(err, &over) {
		t.Error(err)
	}
}

// wait returns the result of Lead.
func (l *leading) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-l.ended:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("it still leads after 30s")
		return nil
	}
}

func (r *rig) scheduler(cfg scheduler.Config) *scheduler.Scheduler {
	r.t.Helper()
	cfg.Ledger, cfg.Resource, cfg.Log = r.Client, group, quiet()
	if cfg.Tick == 0 {
		cfg.Tick = 100 * time.Millisecond
	}
	s, err := scheduler.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(s.Close)
	return s
}

func (r *rig) now() int64 {
	r.t.Helper()
	jobs, err := r.Jobs(r.t.Context(), group, 1, "", 1)
	if err != nil {
		r.t.Fatal(err)
	}
	return jobs.NowMS
}

func (r *rig) apply(token fence.Token, writes ...ledgerapi.Write) {
	r.t.Helper()
	if _, err := r.Apply(r.t.Context(), ledgerapi.Batch{Resource: group, Stamp: at(token), Writes: writes}); err != nil {
		r.t.Fatal(err)
	}
}

func job(key, spec, misfire, payload string, next int64) ledgerapi.Write {
	return ledgerapi.Write{Job: &ledgerapi.JobWrite{Key: key, Schedule: spec, Misfire: misfire, Payload: json.RawMessage(payload), NextMS: next}}
}

func (r *rig) firings(pending bool) (all []ledgerapi.Firing) {
	r.t.Helper()
	for after := ""; ; {
		page, err := r.Firings(r.t.Context(), group, pending, after, 0)
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, page.Items...)
		if after = page.Next; after == "" {
			return all
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after 30s", what)
		}
	}
}

// workerAt is a worker in this process with a fixed address.
type workerAt struct {
	t      *testing.T
	dir    string
	addr   string
	cancel context.CancelFunc
	ended  chan error
}

func newWorkerAt(t *testing.T) *workerAt {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return &workerAt{t: t, dir: t.TempDir(), addr: ln.Addr().String()}
}

func (w *workerAt) url() string { return "http://" + w.addr }

func (w *workerAt) start() *workerAt {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	w.cancel, w.ended = cancel, make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		w.ended <- worker.Run(ctx, worker.Config{ID: "w", Dir: w.dir, Listen: w.addr, Log: quiet()}, func(string) { close(ready) })
	}()
	select {
	case <-ready:
	case err := <-w.ended:
		w.t.Fatal(err)
	}
	w.t.Cleanup(w.stop)
	return w
}

func (w *workerAt) stop() {
	if w.cancel == nil {
		return
	}
	w.cancel()
	w.cancel = nil
	if err := <-w.ended; err != nil {
		w.t.Error(err)
	}
}

func (w *workerAt) status() (s worker.Status) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url()+"/status", http.NoBody)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		w.t.Fatal(err)
	}
	return s
}
