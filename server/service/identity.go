package service

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/operator"
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
// was sent again. A session of the same node that another process opened is not.
func (s *Service) retried(ctx context.Context, c *contest, v lease.View) (holder lease.Session, ours bool, err error) {
	if !leads(v, c.candidate.ID) {
		return lease.Session{}, false, nil
	}
	if holder, err = s.sessions.find(ctx, v.Holder); err != nil {
		return holder, false, err
	}
	if c.within.session != "" {
		return holder, v.Holder == c.within.session, nil
	}
	o := c.opening()
	caller := lease.Session{Candidate: c.candidate, Instance: lease.InstanceDigest(c.instance), Scope: o.Scope}
	if s.duplicates.met(holder, caller) || !slices.Equal(holder.Scope, o.Scope) {
		return holder, false, nil
	}
	return holder, true, nil
}

// otherProcess reports whether another process with the node id of the campaign leads.
func (s *Service) otherProcess(c *contest, v lease.View) bool {
	if !leads(v, c.candidate.ID) || c.within.session != "" || v.Holder == c.session.ID {
		return false
	}
	holder, known := s.sessions.known(v.Holder)
	return !known || holder.Instance != lease.InstanceDigest(c.instance)
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
	if !operator.Duplicate(a, b) {
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
