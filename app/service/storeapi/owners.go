package storeapi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
)

// owners knows whose a session is, its TTL and what it stands for. None of it changes, so
// what was once learned from the engine holds for ever.
type owners struct {
	store lease.Store
	// scan is held by whoever lists the sessions: those that miss at the same
	// time, as after a restart, wait, and find theirs.
	scan chan struct{}

	mu    sync.Mutex
	known map[lease.SessionID]owner
}

type owner struct {
	candidate string
	ttl       time.Duration
	scope     lease.Scope
}

func (o owner) of(id lease.SessionID) lease.Session {
	return lease.Session{ID: id, Candidate: tenure.Candidate{ID: o.candidate}, TTL: o.ttl, Scope: o.scope}
}

const (
	// maxKnown bounds the memory; what was dropped is listed again.
	maxKnown = 1 << 16
	// maxPages bounds one listing.
	maxPages = 1000
	// maxScan bounds it in time. It is not ended by the deadline of the caller
	// that happens to do it, or it might never come to its end.
	maxScan = 10 * time.Second
	// nobodys is a request that is never made: asking for its answer tells
	// whether the session lives, and changes nothing.
	nobodys = "never-asked"
)

func newOwners(s lease.Store) owners {
	return owners{store: s, scan: make(chan struct{}, 1), known: make(map[lease.SessionID]owner)}
}

func (o *owners) put(s lease.Session) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.known) >= maxKnown {
		for old := range o.known {
			delete(o.known, old)
			break
		}
	}
	o.known[s.ID] = owner{s.Candidate.ID, s.TTL, s.Scope}
}

func (o *owners) get(id lease.SessionID) (lease.Session, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	known, ok := o.known[id]
	return known.of(id), ok
}

func (o *owners) forget(id lease.SessionID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.known, id)
}

// of returns a session's id, the id of its candidate, its TTL and its scope. ErrSessionDead is
// definite; a session that is known may be dead all the same.
func (o *owners) of(ctx context.Context, id lease.SessionID) (lease.Session, error) {
	if known, ok := o.get(id); ok {
		return known, nil
	}
	return o.find(ctx, id, func() (lease.Session, bool) { return o.get(id) })
}

// session reads a living session with all that it says of itself.
func (o *owners) session(ctx context.Context, id lease.SessionID) (lease.Session, error) {
	return o.find(ctx, id, func() (lease.Session, bool) { return lease.Session{}, false })
}

// find looks for a session in the engine, unless somebody else has meanwhile. The
// engine is first asked whether it lives, so that the dead, who come in crowds
// after an outage, cost one read each.
func (o *owners) find(ctx context.Context, id lease.SessionID, meanwhile func() (lease.Session, bool)) (lease.Session, error) {
	if !plausible(id) {
		return lease.Session{}, fmt.Errorf("session %.64q never was: %w", id, lease.ErrSessionDead)
	}
	if err := o.lives(ctx, id); err != nil {
		return lease.Session{}, err
	}
	select {
	case o.scan <- struct{}{}:
		defer func() { <-o.scan }()
	case <-ctx.Done():
		return lease.Session{}, ctx.Err()
	}
	if found, ok := meanwhile(); ok {
		return found, nil
	}
	scanning, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxScan)
	defer cancel()
	session, err := o.list(scanning, id)
	if err != nil || session.ID != "" {
		return session, err
	}
	if err := o.lives(scanning, id); err != nil {
		return lease.Session{}, err
	}
	return lease.Session{}, fmt.Errorf("session %q lives and is not listed: its owner cannot be told", id)
}

// list pages through the sessions until it has seen the one, and remembers whose
// all of them are. An engine may want to begin again when the last of a page has
// died.
func (o *owners) list(ctx context.Context, id lease.SessionID) (lease.Session, error) {
	after := ""
	for range maxPages {
		page, err := o.store.Sessions(ctx, lease.Scope{"*"}, lease.Page{After: after})
		if errors.Is(err, lease.ErrInvalid) && after != "" {
			after = ""
			continue
		}
		if err != nil {
			return lease.Session{}, err
		}
		var found lease.Session
		for _, s := range page {
			o.put(s)
			if s.ID == id {
				found = s
			}
			after = string(s.ID)
		}
		if found.ID != "" || len(page) < lease.MaxPage {
			return found, nil
		}
	}
	return lease.Session{}, fmt.Errorf("more than %d pages of sessions", maxPages)
}

func (o *owners) lives(ctx context.Context, id lease.SessionID) error {
	_, err := o.store.Answered(ctx, id, nobodys)
	if errors.Is(err, lease.ErrNotFound) {
		return nil
	}
	return err
}

// plausible: engines make ids of these, and nothing else gets into a key.
func plausible(id lease.SessionID) bool {
	const most = 128
	if len(id) == 0 || len(id) > most {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.', c == ':':
		default:
			return false
		}
	}
	return true
}
