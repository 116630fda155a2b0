package service

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
)

// watchGroups returns the groups that a request watches: from the path, or from the query.
func watchGroups(r *http.Request) []string {
	if g := groupOf(r); g != "" {
		return []string{g}
	}
	return r.URL.Query()["group"]
}

func (s *Service) watch(w http.ResponseWriter, r *http.Request) (any, error) {
	groups := slices.Compact(slices.Sorted(slices.Values(watchGroups(r))))
	if len(groups) == 0 || len(groups) > feed.MaxGroups {
		return nil, bad("bad_argument", "group: name from 1 to %d groups, each as ?group=", feed.MaxGroups)
	}
	for _, g := range groups {
		if err := store.CheckGroup(g); err != nil {
			return nil, err
		}
	}
	q := r.URL.Query()
	poll := q.Has("after") || q.Has("wait")
	text := r.Header.Get("Last-Event-ID")
	if poll {
		text = q.Get("after")
	}
	var from feed.Cursor
	if text != "" {
		var err error
		if from, err = feed.ParseCursor(text); err != nil {
			return nil, bad("bad_cursor", "this service did not make this cursor: begin without one")
		}
	}
	if poll {
		return s.poll(w, r, groups, from)
	}
	return s.stream(w, r, groups, from)
}

// poll answers with the changes after the cursor as soon as there are any, or with none
// after the wait.
func (s *Service) poll(w http.ResponseWriter, r *http.Request, groups []string, from feed.Cursor) (any, error) {
	wait, err := s.waitOf(w, r)
	if err != nil {
		return nil, err
	}
	st := s.feed.Stream(groups, from)
	defer st.Close()
	over := time.NewTimer(wait)
	defer over.Stop()
	out := Poll{Events: []feed.Event{}}
	for ended := false; ; {
		for _, m := range st.Next(r.Context()) {
			if m.Kind == feed.Reset {
				return nil, httpapi.Refuse(http.StatusGone, "cursor_too_old",
					"the changes after the cursor are not available (%s): begin again without a cursor; the history has older terms", m.Reason)
			}
			out.Events = append(out.Events, m.Event)
		}
		if ended || len(out.Events) > 0 {
			break
		}
		select {
		case <-st.Wake():
		case <-over.C:
			ended = true
		case <-s.ctx.Done():
			ended = true // the caller polls again, at another instance
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	out.Cursor = st.Cursor().String()
	return out, s.recheck(auth.From(r.Context()), auth.Observe, groups)
}

// recheck is how often streams and waits check that they are still allowed.
const recheck = 5 * time.Second

// recheck returns a problem if the caller may not do verb to each of the groups any more.
func (s *Service) recheck(id auth.Identity, verb auth.Verb, groups []string) error {
	for _, g := range groups {
		if err := s.gate.Recheck(id, verb, g); err != nil {
			return err
		}
	}
	return nil
}

// events writes Server-Sent Events to one caller. The write deadline cuts off a caller that does
// not read.
type events struct {
	w           http.ResponseWriter
	rc          *http.ResponseController
	h2          bool
	within      time.Duration // one write
	sent, until time.Time
}

// events begins an answer of Server-Sent Events.
func (s *Service) events(w http.ResponseWriter, r *http.Request) *events {
	e := &events{w: w, rc: http.NewResponseController(w), h2: r.ProtoMajor == 2, within: s.cfg.WriteTimeout}
	_ = e.rc.SetReadDeadline(time.Time{})
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	return e
}

func (e *events) send(frame []byte) error {
	// Setting a deadline is not free, so it is moved only when half of it has passed.
	if e.sent = time.Now(); e.until.Sub(e.sent) < e.within/2 {
		e.until = e.sent.Add(e.within)
		if err := e.rc.SetWriteDeadline(e.until); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
	}
	if _, err := e.w.Write(frame); err != nil {
		return err
	}
	err := e.rc.Flush()
	if e.h2 {
		// HTTP/2 ends the stream when a deadline passes, even if no write is waiting.
		_ = e.rc.SetWriteDeadline(time.Time{})
		e.until = time.Time{}
	}
	return err
}

// stream sends Server-Sent Events until the caller leaves or the instance stops. It costs
// little until then: changes are not queued but computed when they can be sent.
func (s *Service) stream(w http.ResponseWriter, r *http.Request, groups []string, from feed.Cursor) (any, error) {
	ctx := r.Context()
	id := auth.From(ctx)
	out := s.events(w, r)
	st := s.feed.Stream(groups, from)
	defer st.Close()
	s.metrics.Streams.Inc()
	defer s.metrics.Streams.Dec()
	// A stream waits on one channel only, because there are thousands of streams.
	defer context.AfterFunc(ctx, st.Nudge)()
	defer context.AfterFunc(s.ctx, st.Nudge)()
	looked, due := time.Now(), time.Now()
	alarm := time.AfterFunc(min(recheck, s.cfg.Heartbeat), st.Nudge)
	defer alarm.Stop()
	err := out.send([]byte("retry: 1000\n\n"))
	for err == nil {
		<-st.Wake()
		switch {
		case ctx.Err() != nil:
			return nil, nil
		case s.ctx.Err() != nil:
			// Clients reconnect by themselves, with the last id, and find another instance.
			_, _ = io.WriteString(w, ": this instance is stopping\n\n")
			return nil, nil
		}
		for _, m := range st.Next(ctx) {
			if err = out.send(m.Frame()); err != nil {
				return nil, nil //nolint:nilerr // the caller is gone
			}
		}
		now := time.Now()
		if now.Before(due) {
			continue
		}
		if now.Sub(looked) >= recheck {
			if s.recheck(id, auth.Observe, groups) != nil {
				return nil, nil // the answer has begun, so the connection just ends
			}
			looked = now
		}
		if now.Sub(out.sent) >= s.cfg.Heartbeat {
			err = out.send([]byte(": still here\n\n"))
		}
		rest := min(recheck-now.Sub(looked), s.cfg.Heartbeat-now.Sub(out.sent))
		due = now.Add(rest)
		alarm.Reset(rest)
	}
	return nil, nil //nolint:nilerr // the caller is gone
}
