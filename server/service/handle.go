package service

import (
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/httpapi"
)

// handle names a session of a deployment to callers, opaquely. The hint is a pattern
// that the session stands for: where to look for it. The hint of a session that the client
// opened is a beginning, and that of a session that a campaign opened is the group.
type handle struct {
	deployment string
	session    lease.SessionID
	hint       string
}

const (
	handleVersion = "1"
	maxHandle     = 512
)

func (h handle) String() string {
	raw := strings.Join([]string{handleVersion, h.deployment, h.hint, string(h.session)}, "\x00")
	return base64.RawURLEncoding.EncodeToString([]byte(raw))
}

// handleOf is the handle of a session that a campaign for the group opened.
func (s *Service) handleOf(id lease.SessionID, group string) string {
	return handle{s.deployment, id, group}.String()
}

// sessionHandle is the handle of a session that a client opened.
func (s *Service) sessionHandle(l lease.Session) string {
	return handle{s.deployment, l.ID, strings.TrimSuffix(l.Scope[0], "*") + "*"}.String()
}

// parseHandle reads a handle of this deployment.
func (s *Service) parseHandle(text string) (handle, error) {
	if text == "" {
		return handle{}, required("handle", true)
	}
	wrong := bad("bad_handle", "the handle is none that this service has given out: use the one of the last campaign or session, unchanged")
	if len(text) > maxHandle {
		return handle{}, wrong
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return handle{}, wrong
	}
	parts := strings.Split(string(raw), "\x00")
	if len(parts) != 4 || parts[0] != handleVersion || parts[3] == "" || (lease.Scope{parts[2]}).Validate() != nil {
		return handle{}, wrong
	}
	if parts[1] != s.deployment {
		return handle{}, &httpapi.Problem{
			Status: http.StatusConflict, Code: "other_deployment",
			Detail: "the handle belongs to another deployment than this service: stop acting, then campaign here",
		}
	}
	return handle{parts[1], lease.SessionID(parts[3]), parts[2]}, nil
}
