package remote

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"sync"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// maxLine bounds one line of a stream: a view with the most metadata.
const maxLine = 1 << 20

var (
	errSilent = errors.New("no heartbeat: the instance is stopped or cut off")
	errEnded  = errors.New("the stream ended without a reason: the instance was probably stopped")
)

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(s.ctx, func() { cancel(errClosed) })()
		st, err := s.follow(ctx, scope)
		if err != nil {
			yield(store.Update{}, err)
			return
		}
		var reader sync.WaitGroup
		defer reader.Wait()
		defer st.stop(nil)
		reader.Go(func() {
			err := st.read()
			if !store.Definite(err) && ctx.Err() == nil {
				s.leave(st.at) // the next watch begins elsewhere
			}
			st.end(fmt.Errorf("remote: watch at %s: %w", s.cfg.URLs[st.at], err))
		})
		for {
			u, err := st.next()
			if !yield(u, err) || err != nil {
				return
			}
		}
	}
}

// follow finds an instance that begins the stream.
func (s *Store) follow(ctx context.Context, scope store.Scope) (*stream, error) {
	body, err := json.Marshal(wire.WatchCall{Scope: scope, Heartbeat: wire.Given(s.cfg.Heartbeat)})
	if err != nil {
		return nil, wrap(wire.Watch, err)
	}
	var st *stream
	err = s.each(ctx, wire.Watch, func(_ context.Context, at, _ int) (got result, err error) {
		// The stream outlives this call, so it uses the context of the watch.
		st = newStream(ctx, at, silence*s.cfg.Heartbeat)
		defer func() {
			if err != nil {
				st.stop(nil)
			}
		}()
		resp, err := s.send(st.ctx, s.streams, wire.Watch, at, body) //nolint:bodyclose // the stream is read on, and closed by stop
		if err != nil {
			return silent, explain(st.ctx, err)
		}
		st.body = resp.Body
		switch {
		case resp.StatusCode != http.StatusOK:
			answer, err := io.ReadAll(io.LimitReader(resp.Body, maxLine))
			if err != nil {
				return silent, explain(st.ctx, err)
			}
			return refused(resp, answer)
		case mediaType(resp) != wire.ContentTypeStream:
			return silent, fmt.Errorf("answered with %.40q, which is no stream", resp.Header.Get("Content-Type"))
		}
		return answered, nil
	})
	return st, err
}

// stream is a watch at one instance. It is read at full speed. Of each group and session it
// keeps the newest update until the consumer takes it.
type stream struct {
	at       int
	patience time.Duration
	ctx      context.Context // of the request
	cancel   context.CancelCauseFunc
	alive    *time.Timer // ends ctx after a silence
	body     io.ReadCloser

	mu    sync.Mutex
	order []string // keys of updates
	waits map[string]store.Update
	err   error
	wake  chan struct{} // buffered by one
}

func newStream(ctx context.Context, at int, patience time.Duration) *stream {
	st := &stream{at: at, patience: patience, waits: make(map[string]store.Update), wake: make(chan struct{}, 1)}
	st.ctx, st.cancel = context.WithCancelCause(ctx)
	st.alive = time.AfterFunc(patience, func() { st.cancel(errSilent) })
	return st
}

// stop ends the request.
func (st *stream) stop(why error) {
	st.cancel(why)
	st.alive.Stop()
	if st.body != nil {
		_ = st.body.Close()
	}
}

// read reads lines until the stream ends, and returns the cause.
func (st *stream) read() error {
	lines := bufio.NewScanner(st.body)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		st.alive.Reset(st.patience)
		var line wire.Line
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("decode a line: %w", err)
		}
		if line.Problem != nil {
			_, err := verdict(line.Problem)
			return err
		}
		u, err := line.Lease()
		if err != nil {
			return err
		}
		if u.Kind != 0 {
			st.put(u)
		}
	}
	return explain(st.ctx, cmp.Or(lines.Err(), errEnded))
}

func (st *stream) put(u store.Update) {
	key := ""
	switch u.Kind {
	case store.GroupChanged:
		key = "group " + u.View.Group
	case store.SessionBegan, store.SessionEnded:
		key = "session " + string(u.Session.ID)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if _, waits := st.waits[key]; !waits {
		st.order = append(st.order, key)
	}
	st.waits[key] = u
	st.rouse()
}

func (st *stream) end(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.err = err
	st.rouse()
}

func (st *stream) rouse() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// next waits for an update. It yields all updates that came before the service ended the
// stream. It drops them if the caller ended the watch, or if heartbeats were missing.
func (st *stream) next() (store.Update, error) {
	for {
		st.mu.Lock()
		if len(st.order) > 0 && st.ctx.Err() == nil {
			key := st.order[0]
			st.order = st.order[1:]
			u := st.waits[key]
			delete(st.waits, key)
			st.mu.Unlock()
			return u, nil
		}
		err := st.err
		st.mu.Unlock()
		if err != nil {
			return store.Update{}, err
		}
		<-st.wake // the reader ends with the context, and says so
	}
}
