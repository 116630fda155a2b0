package nodehttp

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
	"strings"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/config"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// readSecret reads the credential of operators. Without a file there is none.
func readSecret(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, config.Errorf("admin-credential-file", "%v", err)
	}
	const least = 16
	if data = bytes.TrimSpace(data); len(data) < least {
		return nil, config.Errorf("admin-credential-file", "%s holds %d bytes; a credential has at least %d", path, len(data), least)
	}
	return data, nil
}

// operator admits callers on this machine, and those with the credential.
func (n *handler) operator(h handlerFunc) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		if !Local(r) && !n.credible(r) {
			return nil, &httpapi.Problem{Status: http.StatusForbidden, Code: api.CodeDenied, Detail: "allowed only from this machine, or with the credential of --admin-credential-file as a bearer token"}
		}
		if err := discard(w, r); err != nil {
			return nil, err
		}
		return h(w, r)
	}
}

// Local reports whether the caller is on this machine and neither a proxy nor a page in a
// browser.
func Local(r *http.Request) bool {
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via", "Origin"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && net.ParseIP(host).IsLoopback()
}

// credible compares the credential in constant time.
func (n *handler) credible(r *http.Request) bool {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || n.secret == nil {
		return false
	}
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256(n.secret)
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// current returns this node's term, if the caller means it.
func (n *handler) current(r *http.Request) (*tenure.Term, error) {
	t := n.Term()
	if t == nil || t.Check() != nil {
		return nil, errNotLeading
	}
	if want := r.Header.Get("If-Match"); want != "" && want != "*" && want != ledgerapi.ETag(uint64(t.Token())) {
		return nil, &httpapi.Problem{
			Status: http.StatusPreconditionFailed, Code: api.CodeStale, More: map[string]any{"current_token": t.Token(), "leader": n.Config.ID},
			Detail: fmt.Sprintf("%s leads group %q with token %d, and the caller means %.40s", n.Config.ID, n.Config.Group, t.Token(), want),
		}
	}
	return t, nil
}

func (n *handler) postResign(_ http.ResponseWriter, r *http.Request) (any, error) {
	t, err := n.current(r)
	if err != nil {
		return nil, err
	}
	n.Config.Log.Info("asked to resign", "group", n.Config.Group, "token", t.Token(), "by", r.RemoteAddr)
	// Inside tenure.Lead it ends the term and returns.
	return api.Ended{NodeID: n.Config.ID, Token: t.Token()}, t.Resign(r.Context())
}

func (n *handler) postTransfer(_ http.ResponseWriter, r *http.Request) (any, error) {
	t, err := n.current(r)
	if err != nil {
		return nil, err
	}
	to := r.URL.Query().Get("to")
	ctx, cancel := context.WithTimeout(r.Context(), n.Config.WriteTimeout)
	defer cancel()
	if to == "" {
		if to, err = n.Successor(ctx); err != nil {
			return nil, noSuccessor(fmt.Errorf("no standby is known, name one with to=: %w", err))
		}
	}
	n.Config.Log.Info("asked to transfer", "group", n.Config.Group, "token", t.Token(), "to", to, "by", r.RemoteAddr)
	err = t.TransferTo(ctx, to)
	var ended *tenure.EndedError
	switch {
	case err == nil:
		return api.Ended{NodeID: n.Config.ID, Token: t.Token(), Successor: to}, nil
	case errors.Is(err, tenure.ErrSuccessor):
		return nil, noSuccessor(err)
	case errors.As(err, &ended):
		return nil, errNotLeading
	}
	return nil, &httpapi.Problem{Status: http.StatusServiceUnavailable, Code: api.CodeUnavailable, Detail: err.Error(), Retryable: true}
}

func noSuccessor(err error) *httpapi.Problem {
	return &httpapi.Problem{Status: http.StatusNotFound, Code: api.CodeSuccessor, Detail: err.Error() + "; the term continues"}
}
