package service

import (
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/lease"
)

// handle names a session of a deployment to callers, opaquely. The hint is a pattern
// that the session stands for: where to look for it.
type handle struct {
	deployment string
	session    lease.SessionID
	hint       string
	campaign   bool // a campaign opened the session, which ends with its term
}

// A handle begins with how its session was opened.
const (
	handleSession  = "1" // by the client, or by a campaign of an older version
	handleCampaign = "2"
	maxHandle      = 512
)

func (h handle) String() string {
	kind := handleSession
	if h.campaign {
		kind = handleCampaign
	}
	raw := strings.Join([]string{kind, h.deployment, h.hint, string(h.session)}, "\x00")
	return base64.RawURLEncoding.EncodeToString([]byte(raw))
}

func (s *Service) handleOf(id lease.SessionID, hint string) string {
	return handle{deployment: s.deployment, session: id, hint: hint}.String()
}

// parseHandle reads a handle of this deployment.
func (s *Service) parseHandle(text string) (handle, error) {
	wrong := bad("bad_handle", "the handle is none that this service has given out: use the one of the last campaign or session, unchanged")
	if text == "" || len(text) > maxHandle {
		return handle{}, wrong
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return handle{}, wrong
	}
	parts := strings.Split(string(raw), "\x00")
	if len(parts) != 4 || parts[0] != handleSession && parts[0] != handleCampaign || parts[3] == "" || (lease.Scope{parts[2]}).Validate() != nil {
		return handle{}, wrong
	}
	if parts[1] != s.deployment {
		return handle{}, &httpapi.Problem{
			Status: http.StatusConflict, Code: "other_deployment",
			Detail: "the handle belongs to another deployment than this service: stop acting, then campaign here",
		}
	}
	return handle{parts[1], lease.SessionID(parts[3]), parts[2], parts[0] == handleCampaign}, nil
}
