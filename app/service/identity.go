package service

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/app/steer"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

// instanceOf returns the instance that the client chose. A client that chose none gets a
// new one for each call, and its retry is another process.
func instanceOf(given string) (instance string, chosen bool) {
	if given != "" {
		return given, true
	}
	return rand.Text(), false
}

// attempt names a session among those of an instance, so that the call that opens it can
// be retried. A session that a client opens is another than the one of a campaign, which
// ends with its term.
func attempt(purpose string, scope lease.Scope) string {
	sum := sha256.Sum256([]byte(purpose + "\x00" + strings.Join(scope, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// opening is how the session of a campaign is opened.
func (c *contest) opening() lease.OpenOptions {
	scope := lease.Scope{c.group}
	return lease.OpenOptions{Scope: scope, Instance: c.instance, Attempt: attempt("campaign", scope)}
}

func instanceReused(node string) *httpapi.Problem {
	return &httpapi.Problem{
		Status: http.StatusConflict, Code: "instance_reused",
		Detail: fmt.Sprintf("node %q has a living session of this instance that was opened with another ttl_ms, metadata, address or priority: "+
			"send the same values again, resign first, or use a new instance", node),
	}
}

// retried reports whether the leader is the session of this very campaign, because a call
// was sent again, and extends it then. A session of the same node that another process
// opened is not.
func (s *Service) retried(ctx context.Context, c *contest, v lease.View) (bool, error) {
	if !leads(v, c.candidate.ID) {
		return false, nil
	}
	s.sessions.seen(v)
	if c.within.session != "" {
		if v.Holder != c.within.session {
			return false, nil
		}
		c.session = lease.Session{ID: v.Holder, Candidate: v.Candidate}
		return true, s.again(ctx, c)
	}
	holder, err := s.sessions.find(ctx, v.Holder)
	if err != nil {
		return false, err
	}
	o := c.opening()
	caller := lease.Session{Candidate: c.candidate, Instance: lease.InstanceDigest(c.instance), Scope: o.Scope}
	if s.duplicates.met(holder, caller) || !slices.Equal(holder.Scope, o.Scope) {
		return false, nil
	}
	session, sent, err := s.open(ctx, c.candidate, c.wish, holder.TTL, o)
	if err != nil {
		return false, err
	}
	c.session, c.sent = session, sent
	c.earlier = steer.Wish{} // a wish is for the session after this one
	return c.leads(v), nil
}

// otherProcess reports whether another process with the node id of the campaign leads.
func (s *Service) otherProcess(c *contest, v lease.View) bool {
	if !leads(v, c.candidate.ID) || c.within.session != "" || v.Holder == c.session.ID {
		return false
	}
	holder, known := s.sessions.known(v.Holder)
	return !known || holder.Instance != lease.InstanceDigest(c.instance)
}

// closing begins the id of a request that marks a session which is about to be closed.
// It is left with the session, so that every instance can see it. Its term is one that no
// session has, so that no leader obeys it.
const closing = "closing-"

func closes(r lease.Request) bool { return strings.HasPrefix(r.ID, closing) }

// markClosing says that the session is about to be closed. Whoever answers a campaign
// with it looks for the mark first. It returns what takes the mark back.
func (s *Service) markClosing(ctx context.Context, id lease.SessionID, group string) (undo func(), err error) {
	r := lease.Request{ID: closing + strings.ToLower(rand.Text()), Verb: lease.StepDown, Group: group, Token: fence.MaxToken, TTL: 2 * s.cfg.CallTimeout}
	cctx, cancel := s.call(ctx)
	defer cancel()
	undo = func() {
		cctx, cancel := s.call(ctx)
		defer cancel()
		_ = s.store.Answer(cctx, id, r.ID, lease.Answer{Outcome: lease.Done}) // or it expires
	}
	return undo, s.store.Ask(cctx, id, r)
}

// deliverable checks that the answer to a campaign that leads may be given. It may not
// while another call closes the session. A client that chose no instance cannot retry, so
// if its connection is gone nobody would know of the term.
func (s *Service) deliverable(ctx context.Context, c *contest) error {
	switch {
	case c.within.session != "":
		return nil
	case !c.chosen:
		return context.Cause(ctx)
	}
	beat, sent, err := s.keep(ctx, c.session.ID)
	switch {
	case errors.Is(err, lease.ErrSessionDead), err == nil && slices.ContainsFunc(beat.Requests, closes):
		return fmt.Errorf("service: the session of the campaign is being closed: %w", lease.ErrConflict)
	case err != nil:
		return err
	}
	c.session.TTL, c.sent = beat.TTL, sent
	return nil
}

// abandon closes the session of a campaign that did not lead, so that nobody hands the
// group to a client that has left. If the client chose the instance, a retry elsewhere may
// answer with the same session, and then the session is the client's. Each of the two
// writes before it reads: this call marks the session, then reads the record; the other
// acquires the record, then looks for the mark. So at least one of them sees the other.
func (s *Service) abandon(ctx context.Context, c *contest) {
	id := c.session.ID
	if id == "" || c.within.session != "" {
		return
	}
	if c.chosen {
		undo, err := s.markClosing(ctx, id, c.group)
		if err != nil {
			return // it is dead, or expires
		}
		cctx, cancel := s.call(ctx)
		v, err := s.store.Read(cctx, c.group)
		cancel()
		if err != nil || v.Holder == id {
			undo()
			return
		}
	}
	s.close(ctx, c.session, lease.Closed)
}

// close ends a session that this service opened for a campaign. If it fails, the session
// expires.
func (s *Service) close(ctx context.Context, l lease.Session, why lease.Reason) {
	cctx, cancel := s.call(ctx)
	defer cancel()
	if err := s.store.Close(cctx, l.ID, why); err != nil {
		s.cfg.Log.Warn("cannot close the session of a campaign; it is a candidate until it expires", "node", l.Candidate.ID, "err", err)
		return
	}
	s.census.closed(l)
}

// duplicates reports processes that use one node id.
type duplicates struct {
	s *Service

	mu   sync.Mutex
	told map[string]bool
}

// duplicatesTold bounds how many node ids are remembered as reported.
const duplicatesTold = 1024

// met reports whether two sessions are of different processes with one node id. It counts
// that, and logs it once for a node.
func (t *duplicates) met(a, b lease.Session) bool {
	if !steer.Duplicate(a, b) {
		return false
	}
	t.s.metrics.duplicates.Inc()
	t.mu.Lock()
	defer t.mu.Unlock()
	node := a.Candidate.ID
	if t.told[node] {
		return true
	}
	if len(t.told) >= duplicatesTold {
		clear(t.told)
	}
	t.told[node] = true
	t.s.cfg.Log.Warn("two processes use one node id, or one was restarted and its old session has not expired; give each process its own id",
		"node", node, "session", fingerprint(a), "other", fingerprint(b), "address", a.Candidate.Address, "other_address", b.Candidate.Address)
	return true
}

// fingerprint names a session in a log without revealing its id, which is a secret of its
// owner. A caller without a session yet is named by its instance.
func fingerprint(l lease.Session) string {
	const figures = 8
	sum := sha256.Sum256([]byte("session\x00" + string(l.ID) + "\x00" + l.Instance))
	return hex.EncodeToString(sum[:])[:figures]
}
