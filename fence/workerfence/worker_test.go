package workerfence_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/filefence"
	"github.com/tenurehq/tenure/fence/workerfence"
)

// shared connects all connections of the suite to one worker, as over a network, because a
// worker belongs to one process.
type shared struct {
	mu  sync.Mutex
	all map[string]*sharedWorker
}

type sharedWorker struct {
	dir    *filefence.Dir
	worker *workerfence.Worker
	users  int
}

func (h *shared) sink(name string, worker func(*filefence.Dir, workerfence.Handler) *workerfence.Worker) fencetest.Sink {
	return fencetest.Sink{
		Name:      name,
		MarkFirst: true,
		Create:    func(t testing.TB) string { return t.TempDir() },
		Open: func(path string) (fencetest.Resource, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.all[path] == nil {
				d, err := filefence.Open(path)
				if err != nil {
					return fencetest.Resource{}, err
				}
				h.all[path] = &sharedWorker{dir: d, worker: worker(d, act(path))}
			}
			s := h.all[path]
			s.users++
			return fencetest.Resource{
				Write: func(ctx context.Context, stamp fence.Stamp, payload string) error {
					return s.worker.Do(ctx, stamp, []byte(payload))
				},
				Effects: func(context.Context) ([]string, error) { return effects(path) },
				Mark:    s.dir.Mark,
				Seal:    s.worker.Seal,
				Advance: s.worker.Advance,
				Close: func() error {
					h.mu.Lock()
					defer h.mu.Unlock()
					if s.users--; s.users > 0 {
						return nil
					}
					delete(h.all, path)
					return s.dir.Close()
				},
			}, nil
		},
	}
}

// act is a handler that appends a line to a file.
func act(path string) workerfence.Handler {
	return func(ctx context.Context, _ fence.Stamp, order []byte) error {
		fencetest.Between(ctx)
		f, err := os.OpenFile(filepath.Join(path, "effects"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
		_, err = f.Write(append(order, '\n'))
		return errors.Join(err, f.Close())
	}
}

func effects(path string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(path, "effects"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), err
}

func sink() fencetest.Sink {
	h := &shared{all: make(map[string]*sharedWorker)}
	return h.sink("worker", func(d *filefence.Dir, handle workerfence.Handler) *workerfence.Worker {
		return workerfence.New(d, handle)
	})
}

// forgetful keeps its mark in memory.
type forgetful struct {
	mu   sync.Mutex
	mark fence.Mark
}

func (f *forgetful) Seal(_ context.Context, s fence.Stamp) (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mark, err = f.mark.Admit(s)
	return err
}

func inMemory() fencetest.Sink {
	h := &shared{all: make(map[string]*sharedWorker)}
	s := h.sink("mark in memory", func(_ *filefence.Dir, handle workerfence.Handler) *workerfence.Worker {
		return workerfence.New(&forgetful{}, handle)
	})
	return withoutMark(s)
}

func withoutMark(s fencetest.Sink) fencetest.Sink {
	open := s.Open
	s.Open = func(where string) (fencetest.Resource, error) {
		r, err := open(where)
		r.Mark = nil
		return r, err
	}
	return s
}

// each makes a worker for every order, so that no order waits for running ones with lower
// tokens.
func each() fencetest.Sink {
	s := sink()
	s.Name = "nobody waits"
	s.Open = func(path string) (fencetest.Resource, error) {
		d, err := filefence.Open(path)
		if err != nil {
			return fencetest.Resource{}, err
		}
		return fencetest.Resource{
			Write: func(ctx context.Context, stamp fence.Stamp, payload string) error {
				return workerfence.New(d, act(path)).Do(ctx, stamp, []byte(payload))
			},
			Effects: func(context.Context) ([]string, error) { return effects(path) },
			Close:   d.Close,
		}, nil
	}
	return s
}

// unmarked accepts every order.
type unmarked struct{}

func (unmarked) Seal(context.Context, fence.Stamp) error { return nil }

func noMark() fencetest.Sink {
	h := &shared{all: make(map[string]*sharedWorker)}
	return withoutMark(h.sink("no mark", func(_ *filefence.Dir, handle workerfence.Handler) *workerfence.Worker {
		return workerfence.New(unmarked{}, handle)
	}))
}

func TestMain(m *testing.M) {
	fencetest.Child(sink(), inMemory(), each(), noMark())
	os.Exit(m.Run())
}

// A worker passes the tests of a sink.
func TestSink(t *testing.T) { fencetest.Run(t, sink()) }

// The suite catches typical mistakes.
func TestTwins(t *testing.T) {
	fencetest.Breaks(t, inMemory(), fencetest.MarkSurvives)
	fencetest.Breaks(t, each(), fencetest.NotOvertaken)
	fencetest.Breaks(t, noMark(), fencetest.StaleRefused, fencetest.SlipRefused, fencetest.Atomic)
}

func at(token fence.Token) fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: "jobs", Token: token}
}

// A higher token ends the running orders with lower ones, with a cause, and is executed after
// they have returned. Orders with one token run concurrently.
func TestHigherEndsLower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var log []string
		say := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			log = append(log, what)
		}
		w := workerfence.New(&forgetful{}, func(ctx context.Context, _ fence.Stamp, order []byte) error {
			say("begin " + string(order))
			defer say("end " + string(order))
			if string(order) == "new" {
				return nil
			}
			<-ctx.Done()
			time.Sleep(time.Second) // it cleans up
			return context.Cause(ctx)
		})
		var lower sync.WaitGroup
		for range 2 {
			lower.Go(func() {
				var e *workerfence.InterruptedError
				if err := w.Do(t.Context(), at(4), []byte("old")); !errors.As(err, &e) || e.Stamp.Token != 4 || e.By.Token != 5 || e.Err != nil {
					t.Errorf("the running order ended with %v", err)
				}
			})
		}
		synctest.Wait()
		if err := w.Do(t.Context(), at(5), []byte("new")); err != nil {
			t.Error(err)
		}
		lower.Wait()
		if got, want := strings.Join(log, ", "), "begin old, begin old, end old, end old, begin new, end new"; got != want {
			t.Errorf("%s; want %s", got, want)
		}
	})
}

// An order that was started and interrupted is not reported as refused, whatever the handler
// returns. One that finished all the same is reported as done.
func TestInterruptedIsNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, result := range []error{&fence.StaleError{Stamp: at(4)}, context.Canceled, nil} {
			w := workerfence.New(&forgetful{}, func(ctx context.Context, _ fence.Stamp, _ []byte) error {
				<-ctx.Done()
				var e *workerfence.InterruptedError
				if cause := context.Cause(ctx); !errors.As(cause, &e) || errors.Is(cause, fence.ErrRefused) {
					t.Errorf("the order's context ended with %v", cause)
				}
				return result
			})
			var lower sync.WaitGroup
			lower.Go(func() {
				err := w.Do(t.Context(), at(4), nil)
				var e *workerfence.InterruptedError
				switch {
				case result == nil && err == nil:
				case !errors.As(err, &e) || errors.Is(err, fence.ErrRefused) || !errors.Is(e.Err, result):
					t.Errorf("the handler returned %v, and Do %v", result, err)
				}
			})
			synctest.Wait()
			if err := w.Seal(t.Context(), at(5)); err != nil {
				t.Error(err)
			}
			lower.Wait()
		}
	})
}

// A worker whose mark cannot be advanced cannot be advanced.
func TestCannotAdvance(t *testing.T) {
	if err := workerfence.New(&forgetful{}, nil).Advance(t.Context(), at(5)); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("answered %v", err)
	}
}

// An order that does not stop delays the next leader until that one's context ends. The mark
// is raised already, so lower tokens are refused.
func TestLowerDoesNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := workerfence.New(&forgetful{}, func(context.Context, fence.Stamp, []byte) error {
			<-release
			return nil
		})
		var lower sync.WaitGroup
		lower.Go(func() { _ = w.Do(t.Context(), at(4), nil) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Seal(ctx, at(5)); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, fence.ErrRefused) {
			t.Errorf("sealed beside a running order: %v", err)
		}
		if err := w.Do(t.Context(), at(4), nil); !errors.Is(err, fence.ErrRefused) {
			t.Errorf("an order of the lower token: %v", err)
		}
		close(release)
		lower.Wait()
		if err := w.Seal(t.Context(), at(5)); err != nil {
			t.Error(err)
		}
	})
}
