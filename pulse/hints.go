package pulse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/store"
)

// Hints ends sessions of processes that have probably died: for another host, where no keeper
// can prove it. It keeps a connection to the address of each candidate. If the connection ends,
// and the address then refuses another one, it ends the session with the reason
// [store.Suspected].
//
// It may be wrong: a firewall can end and refuse connections, and a process can close its port.
// Then two processes act at once until the first one notices, so only sessions that were opened
// as fenced (lease.Config.Fenced) end this way. The store refuses the others.
type Hints struct {
	store store.Store
	log   *slog.Logger
	ended atomic.Uint64
}

// NewHints returns Hints that do nothing before Run. A nil log is slog.Default().
func NewHints(st store.Store, log *slog.Logger) *Hints {
	if log == nil {
		log = slog.Default()
	}
	return &Hints{store: st, log: log}
}

// Ended is how many sessions it has ended.
func (h *Hints) Ended() uint64 { return h.ended.Load() }

const (
	// maxFollowed is how many sessions Hints follow.
	maxFollowed = 1024
	// firstPause and lastPause are between two connections to one address.
	firstPause, lastPause = 100 * time.Millisecond, 10 * time.Second
)

// Run follows the fenced sessions in scope whose candidates have an address, host:port or a URL
// with a port, until ctx ends.
func (h *Hints) Run(ctx context.Context, scope store.Scope) {
	for ctx.Err() == nil {
		if err := h.watch(ctx, scope); ctx.Err() == nil {
			h.log.Warn("hints: the sessions cannot be watched", "error", err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

func (h *Hints) watch(ctx context.Context, scope store.Scope) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	followed := map[store.SessionID]context.CancelFunc{}
	for u, err := range h.store.Watch(ctx, scope) {
		if err != nil {
			return err
		}
		id := u.Session.ID
		switch u.Kind {
		case store.SessionBegan:
			address := hostPort(u.Session.Candidate.Address)
			if !u.Session.Fenced || address == "" || followed[id] != nil || len(followed) >= maxFollowed {
				continue
			}
			fctx, stop := context.WithCancel(ctx)
			followed[id] = stop
			all.Go(func() { h.follow(fctx, address, u.Session) })
		case store.SessionEnded:
			if stop := followed[id]; stop != nil {
				stop()
				delete(followed, id)
			}
		case store.GroupChanged, store.Synced:
		}
	}
	return errors.New("the watch ended")
}

// hostPort returns the host and port of an address; "" if it has none.
func hostPort(address string) string {
	if _, rest, ok := strings.Cut(address, "://"); ok {
		address, _, _ = strings.Cut(rest, "/")
	}
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
		return ""
	}
	return address
}

// follow keeps a connection to the address until ctx ends, or until it has ended the session.
func (h *Hints) follow(ctx context.Context, address string, s store.Session) {
	met := false // there was a connection, and it has ended
	for pause := firstPause; ctx.Err() == nil; {
		began := time.Now()
		err := attend(ctx, address)
		switch {
		case err == nil:
			if time.Since(began) > lastPause {
				pause = firstPause
			}
			if met {
				break
			}
			met = true
			continue // at once: does it refuse now?
		case met && errors.Is(err, syscall.ECONNREFUSED) && h.suspect(ctx, s):
			return
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, lastPause)
		case <-ctx.Done():
		}
	}
}

// attend returns nil when a connection to the address has ended, and an error if there is none.
func attend(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: callTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, _ = io.Copy(io.Discard, conn)
	return nil
}

func (h *Hints) suspect(ctx context.Context, s store.Session) bool {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := h.store.End(ctx, s.ID, store.Suspected); err != nil {
		h.log.Warn("hints: a session could not be ended", "candidate", s.Candidate.ID, "error", err)
		return false
	}
	h.ended.Add(1)
	h.log.Warn("hints: the address of a candidate refuses connections, so its session is ended", "candidate", s.Candidate.ID, "address", fmt.Sprintf("%.128q", s.Candidate.Address))
	return true
}
