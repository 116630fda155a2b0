//go:build linux

package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// broadcast is a minimal server of events: one channel per connection, one write per event.
// POST sends a body to all.
func broadcast(e *helperRun) error {
	var mu sync.Mutex
	all := map[chan []byte]bool{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "retry: 1000\n\n")
		_ = rc.Flush()
		frames := make(chan []byte, 1)
		mu.Lock()
		all[frames] = true
		mu.Unlock()
		defer func() {
			mu.Lock()
			delete(all, frames)
			mu.Unlock()
		}()
		for {
			select {
			case frame := <-frames:
				if _, err := w.Write(frame); err != nil || rc.Flush() != nil {
					return
				}
			case <-r.Context().Done():
				return
			}
		}
	})
	mux.HandleFunc("POST /", func(_ http.ResponseWriter, r *http.Request) {
		frame, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for frames := range all {
			select {
			case frames <- frame:
			default:
			}
		}
	})
	go func() {
		for range e.in { // it gets no input
		}
	}()
	return e.serve(mux)
}

// connect opens all streams, a few at a time.
func (e *helperRun) connect(control func(fd int) error, each func(i int, w *wire)) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	few := make(chan struct{}, 32)
	for i := range e.N {
		few <- struct{}{}
		all.Go(func() {
			defer func() { <-few }()
			w, err := newWire(e.URL, control)
			if err == nil {
				_ = w.conn.SetDeadline(time.Now().Add(time.Minute))
				_, err = w.begin()
			}
			if err != nil {
				mu.Lock()
				failed = fmt.Errorf("watcher %d: %w", i, err)
				mu.Unlock()
				return
			}
			_ = w.conn.SetDeadline(time.Time{})
			each(i, w)
		})
	}
	all.Wait()
	return failed
}

// round is one event that all watchers wait for.
type round struct {
	needle []byte
	at     []atomic.Int64 // by watcher
	left   atomic.Int64
	done   chan struct{}
}

// watchAll opens streams and reports when each has read what is expected.
func watchAll(e *helperRun) error {
	var now atomic.Pointer[round]
	var broken atomic.Int64
	var reading sync.WaitGroup
	var conns sync.Map
	err := e.connect(nil, func(i int, w *wire) {
		conns.Store(i, w)
		reading.Go(func() {
			if err := follow(w, func(frame []byte, at clock.Instant) {
				r := now.Load()
				if r != nil && bytes.Contains(frame, r.needle) && r.at[i].CompareAndSwap(0, int64(at)) && r.left.Add(-1) == 0 {
					close(r.done)
				}
			}); err != nil && e.ctx.Err() == nil {
				broken.Add(1)
			}
		})
	})
	defer reading.Wait()
	defer conns.Range(func(_, w any) bool { _ = w.(*wire).conn.Close(); return true })
	if err != nil {
		return err
	}
	e.say(told{What: "ready"})
	for t := range e.in {
		r := &round{needle: []byte(t.Text), at: make([]atomic.Int64, e.N), done: make(chan struct{})}
		r.left.Store(int64(e.N))
		now.Store(r)
		e.say(told{What: "expecting"})
		select {
		case <-r.done:
		case <-time.After(30 * time.Second):
		case <-e.ctx.Done():
		}
		a := told{What: "heard", Text: strconv.FormatInt(broken.Load(), 10)}
		for i := range r.at {
			if at := r.at[i].Load(); at > 0 {
				a.At = append(a.At, at)
			}
		}
		e.say(a)
	}
	return nil
}

// follow forwards the events of a stream, with the time when each was complete.
func follow(w *wire, f func(frame []byte, at clock.Instant)) error {
	c := clock.System()
	var frame []byte
	for {
		line, err := w.in.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.ErrShortBuffer) && len(line) == 0 {
			return err
		}
		frame = append(frame, line...)
		if bytes.HasSuffix(frame, []byte("\n\n")) {
			f(frame, c.Now())
			frame = frame[:0]
		}
	}
}

// sleepAll opens streams and reads nothing.
func sleepAll(e *helperRun) error {
	// A small buffer, so that the kernel reads little.
	small := func(fd int) error { return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) }
	err := e.connect(small, func(int, *wire) {})
	if err != nil {
		return err
	}
	e.say(told{What: "ready"})
	for range e.in { // it gets no input
	}
	return nil
}
