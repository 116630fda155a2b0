package service

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/httpapi"
)

// watchGroups are those that a request watches: of the path, or of the query.
func watchGroups(r *http.Request) []string {
	if g := groupOf(r); g != "" {
		return []string{g}
	}
	return r.URL.Query()["group"]
}

func (s *Service) watch(w http.ResponseWriter, r *http.Request) error {
	groups := slices.Clone(watchGroups(r))
	slices.Sort(groups)
	groups = slices.Compact(groups)
	if len(groups) == 0 || len(groups) > feed.MaxGroups {
		return bad("bad_argument", "group: name from 1 to %d groups, each as ?group=", feed.MaxGroups)
	}
	for _, g := range groups {
		if err := lease.CheckGroup(g); err != nil {
			return err
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
			return bad("bad_cursor", "the cursor is none that this service has given out: begin without one")
		}
	}
	if poll {
		return s.poll(w, r, groups, from)
	}
	return s.stream(w, r, groups, from)
}

// poll answers with the changes after the cursor as soon as there are any, or with none
// when the wait is over.
func (s *Service) poll(w http.ResponseWriter, r *http.Request, groups []string, from feed.Cursor) error {
	wait, err := s.waitOf(w, r)
	if err != nil {
		return err
	}
	st := s.feed.Stream(groups, from)
	defer st.Close()
	over := time.NewTimer(wait)
	defer over.Stop()
	out := Poll{Events: []feed.Event{}}
	for ended := false; ; {
		for _, m := range st.Next(r.Context()) {
			if m.Kind == feed.Reset {
				return &httpapi.Problem{
					Status: http.StatusGone, Code: "cursor_too_old",
					Detail: "what happened since the cursor is no longer remembered (" + m.Reason + "): begin again without one; the history has what is left",
				}
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
			ended = true // its caller asks again, elsewhere
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
	for _, g := range groups {
		if err := s.gate.Recheck(auth.From(r.Context()), auth.Observe, g); err != nil {
			return err
		}
	}
	out.Cursor = st.Cursor().String()
	httpapi.WriteJSON(w, http.StatusOK, out)
	return nil
}

// recheck is how often a stream asks whether it is still allowed.
const recheck = 5 * time.Second

// stream sends Server-Sent Events until the caller or the instance goes away. A caller
// that does not read is cut off by the deadline of a write; meanwhile it costs nobody
// anything, for what it misses is not kept but computed when it can be sent.
func (s *Service) stream(w http.ResponseWriter, r *http.Request, groups []string, from feed.Cursor) error {
	ctx := r.Context()
	id := auth.From(ctx)
	rc := http.NewResponseController(w)
	var sent, until time.Time
	send := func(frame []byte) error {
		// The timer behind a deadline is not free: it is moved when half of it is gone.
		if sent = time.Now(); until.Sub(sent) < s.cfg.WriteTimeout/2 {
			until = sent.Add(s.cfg.WriteTimeout)
			if err := rc.SetWriteDeadline(until); err != nil && !errors.Is(err, http.ErrNotSupported) {
				return err
			}
		}
		if _, err := w.Write(frame); err != nil {
			return err
		}
		err := rc.Flush()
		if r.ProtoMajor == 2 {
			// There a deadline ends the stream when it passes, whether or not a write is waiting.
			_ = rc.SetWriteDeadline(time.Time{})
			until = time.Time{}
		}
		return err
	}
	_ = rc.SetReadDeadline(time.Time{})
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	st := s.feed.Stream(groups, from)
	defer st.Close()
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	// It waits for one thing alone, for there are thousands that do.
	defer context.AfterFunc(ctx, st.Nudge)()
	defer context.AfterFunc(s.ctx, st.Nudge)()
	looked, due := time.Now(), time.Now()
	alarm := time.AfterFunc(min(recheck, s.cfg.Heartbeat), st.Nudge)
	defer alarm.Stop()
	err := send([]byte("retry: 1000\n\n"))
	for err == nil {
		<-st.Wake()
		switch {
		case ctx.Err() != nil:
			return nil
		case s.ctx.Err() != nil:
			// A client reconnects by itself, with the last id, and finds another instance.
			_, _ = io.WriteString(w, ": this instance is stopping\n\n")
			return nil
		}
		for _, m := range st.Next(ctx) {
			if err = send(m.Frame()); err != nil {
				return nil //nolint:nilerr // the caller is gone: there is nobody to tell
			}
		}
		now := time.Now()
		if now.Before(due) {
			continue
		}
		if now.Sub(looked) >= recheck {
			for _, g := range groups {
				if s.gate.Recheck(id, auth.Observe, g) != nil {
					return nil // its answer has begun; the connection ends here
				}
			}
			looked = now
		}
		if now.Sub(sent) >= s.cfg.Heartbeat {
			err = send([]byte(": still here\n\n"))
		}
		rest := min(recheck-now.Sub(looked), s.cfg.Heartbeat-now.Sub(sent))
		due = now.Add(rest)
		alarm.Reset(rest)
	}
	return nil //nolint:nilerr // the caller is gone: there is nobody to tell
}
