package storeapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote/wire"
)

const (
	defaultHeartbeat = 5 * time.Second
	minHeartbeat     = 100 * time.Millisecond
	maxHeartbeat     = 15 * time.Second
	defaultWrite     = 10 * time.Second
	// recheck is how often a stream checks that it is still allowed.
	recheck = 5 * time.Second
	// ahead is how many updates are read before they are written, so that one write can
	// carry many.
	ahead = 64
)

var errStopping = errors.New("this instance of the service is stopping: start the watch at another instance")

// watched is what the watch of an engine yields.
type watched struct {
	store.Update
	err error
}

// watch streams until the caller leaves, the watch of the engine ends, or the service stops.
func (a *API) watch(w http.ResponseWriter, r *http.Request) {
	v := &visit{API: a, r: r, method: wire.Watch, heard: Heard{Method: wire.Watch}}
	in, err := a.beginWatch(w, v)
	v.report(err)
	if err != nil {
		httpapi.WriteProblem(w, problem(wire.Watch, err))
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	updates := make(chan watched, ahead)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(updates)
		for u, err := range a.cfg.Store.Watch(ctx, in.Scope) {
			select {
			case updates <- watched{u, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	defer reader.Wait()
	defer cancel()
	out := &lines{to: w, control: http.NewResponseController(w), within: a.cfg.WriteTimeout, h2: r.ProtoMajor == 2}
	w.Header().Set("Content-Type", wire.ContentTypeStream)
	w.Header().Set("Cache-Control", "no-store")
	if !out.h2 {
		w.Header().Set("Connection", "close") // its write deadline must not outlive it
	}
	heartbeat := cmp.Or(wire.Duration(in.Heartbeat), defaultHeartbeat)
	a.stream(ctx, v, in.Scope, out, updates, min(max(heartbeat, minHeartbeat), maxHeartbeat))
}

func (a *API) beginWatch(w http.ResponseWriter, v *visit) (in wire.WatchCall, err error) {
	if err := httpapi.ReadJSON(w, v.r, maxBody, false, &in); err != nil {
		return in, err
	}
	ctx, cancel := context.WithTimeout(v.r.Context(), defaultCall)
	defer cancel()
	if err := a.checkDeployment(ctx, v.r); err != nil {
		return in, err
	}
	return in, v.list(in.Scope)
}

func (a *API) stream(ctx context.Context, v *visit, scope store.Scope, out *lines, updates <-chan watched, heartbeat time.Duration) {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	look := time.NewTicker(recheck)
	defer look.Stop()
	// The first line tells the client that the stream has begun.
	next := wire.Line{Heartbeat: true}
	for {
		if out.add(next) != nil || len(updates) == 0 && out.flush() != nil || next.Problem != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-a.cfg.Stopping:
			next = failed(errStopping)
		case <-ticker.C:
			next = wire.Line{Heartbeat: true}
		case <-look.C:
			if v.may(auth.Observe, scope...) != nil {
				return // the next watch gets the reason
			}
			next = wire.Line{Heartbeat: true}
		case got, ok := <-updates:
			switch {
			case !ok:
				next = failed(errors.New("the watch of the engine ended"))
			case got.err != nil:
				next = failed(got.err)
			default:
				next = wire.LineOf(got.Update)
			}
		}
	}
}

// failed is the line that ends a stream.
func failed(err error) wire.Line {
	p := wire.ProblemOf(wire.Watch, err)
	return wire.Line{Problem: &p}
}

// lines collects lines and writes several at once.
type lines struct {
	to      http.ResponseWriter
	control *http.ResponseController
	within  time.Duration // one write
	h2      bool
	buffer  bytes.Buffer
}

// enough is how many bytes are collected before they are written.
const enough = 64 << 10

func (l *lines) add(line wire.Line) error {
	if err := json.NewEncoder(&l.buffer).Encode(line); err != nil {
		return err
	}
	if line.Problem != nil || l.buffer.Len() >= enough {
		return l.flush()
	}
	return nil
}

func (l *lines) flush() error {
	if l.buffer.Len() == 0 {
		return nil
	}
	// The deadline of the server is for a whole call; a stream needs one for each write.
	_ = l.control.SetWriteDeadline(time.Now().Add(l.within))
	if _, err := l.buffer.WriteTo(l.to); err != nil {
		return err
	}
	err := l.control.Flush()
	if l.h2 {
		// HTTP/2 ends the stream when a deadline passes, even if no write is waiting.
		_ = l.control.SetWriteDeadline(time.Time{})
	}
	return err
}
