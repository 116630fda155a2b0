package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// readSecret reads the credential of operators; no file is no credential.
func readSecret(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &ConfigError{"admin-token-file", err.Error()}
	}
	const least = 16
	if data = bytes.TrimSpace(data); len(data) < least {
		return nil, &ConfigError{"admin-token-file", fmt.Sprintf("%s holds %d bytes: a credential has at least %d", path, len(data), least)}
	}
	return data, nil
}

// operator lets those on the machine itself through, and those with the credential.
func (n *Node) operator(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !Local(r) && !n.credible(r) {
			n.fail(w, &httpapi.Problem{Status: http.StatusForbidden, Code: api.CodeDenied, Detail: "allowed only from this machine, or with the credential of --admin-token-file as a bearer token"})
			return
		}
		if err := discard(w, r); err != nil {
			n.fail(w, err)
			return
		}
		h(w, r)
	}
}

// Local reports whether the caller is on this machine and calls for itself: it is neither a
// proxy nor a page in a browser.
func Local(r *http.Request) bool {
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via", "Origin"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && net.ParseIP(host).IsLoopback()
}

// credible compares in a time that says nothing about the credential.
func (n *Node) credible(r *http.Request) bool {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || n.secret == nil {
		return false
	}
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256(n.secret)
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// current returns this node's term, if the caller means it.
func (n *Node) current(w http.ResponseWriter, r *http.Request) *begun {
	t := n.term.Load()
	if t == nil || t.Check() != nil {
		n.turnAway(w, r)
		return nil
	}
	if want := r.Header.Get("If-Match"); want != "" && want != "*" && want != strconv.Quote(fmt.Sprint(t.Token())) {
		n.fail(w, &httpapi.Problem{
			Status: http.StatusPreconditionFailed, Code: api.CodeStale, More: map[string]any{"current_token": t.Token(), "leader": n.cfg.ID},
			Detail: fmt.Sprintf("group %q is led by %s with token %d, the caller means %.40s", n.cfg.Group, n.cfg.ID, t.Token(), want),
		})
		return nil
	}
	return t
}

func (n *Node) postResign(w http.ResponseWriter, r *http.Request) {
	t := n.current(w, r)
	if t == nil {
		return
	}
	n.cfg.Log.Info("asked to resign", "group", n.cfg.Group, "token", t.Token(), "by", r.RemoteAddr)
	// Inside tenure.Lead it ends the term and returns.
	if err := t.Resign(r.Context()); err != nil {
		n.fail(w, err)
		return
	}
	httpapi.WriteJSON(w, http.StatusOK, api.Ended{NodeID: n.cfg.ID, Token: t.Token()})
}

func (n *Node) postTransfer(w http.ResponseWriter, r *http.Request) {
	t := n.current(w, r)
	if t == nil {
		return
	}
	to := r.URL.Query().Get("to")
	ctx, cancel := context.WithTimeout(r.Context(), n.cfg.WriteTimeout)
	defer cancel()
	if to == "" {
		var err error
		if to, err = n.successor(ctx); err != nil {
			n.fail(w, noSuccessor(fmt.Errorf("no standby is known, name one with to=: %w", err)))
			return
		}
	}
	n.cfg.Log.Info("asked to transfer", "group", n.cfg.Group, "token", t.Token(), "to", to, "by", r.RemoteAddr)
	err := t.TransferTo(ctx, to)
	var ended *tenure.EndedError
	switch {
	case err == nil:
		httpapi.WriteJSON(w, http.StatusOK, api.Ended{NodeID: n.cfg.ID, Token: t.Token(), Successor: to})
	case errors.Is(err, tenure.ErrSuccessor):
		n.fail(w, noSuccessor(err))
	case errors.As(err, &ended):
		n.turnAway(w, r)
	default:
		n.fail(w, &httpapi.Problem{Status: http.StatusServiceUnavailable, Code: api.CodeUnavailable, Detail: err.Error(), Retryable: true})
	}
}

func noSuccessor(err error) *httpapi.Problem {
	return &httpapi.Problem{Status: http.StatusNotFound, Code: api.CodeSuccessor, Detail: err.Error() + "; the term goes on"}
}
