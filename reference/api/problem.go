package api

import (
	"fmt"
	"net/http"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/server/httpapi"
)

// The codes of a node's problems, besides those of package httpapi and of the ledger, which are
// passed on.
const (
	CodeNotLeader      = "not_leader"      // 409: another node leads; nothing was done
	CodeNoLeader       = "no_leader"       // 503: no leader is known; nothing was done
	CodeStepping       = "stepping_down"   // 503: this node steps down; nothing was done
	CodeOutcomeUnknown = "outcome_unknown" // 503: it may have been done or not
	CodeBusy           = "busy"            // 429: too many calls wait; nothing was done
	CodeUnavailable    = "unavailable"     // 503: the ledger cannot be reached; nothing was done
	CodeSuccessor      = "no_such_successor"
	CodeDenied         = "denied"
	CodeRequest        = "invalid_request"
	CodeForeign        = "foreign_ledger" // 503: the group's resource in the ledger belongs to another deployment
	CodeStale          = "stale_token"    // 412: current_token and the caller's If-Match differ
)

// NotLeader is the problem that names the leader. The caller sets the Location header.
func NotLeader(node, group, leader, address string, token fence.Token) *httpapi.Problem {
	return &httpapi.Problem{
		Status: http.StatusConflict, Code: CodeNotLeader, Retryable: true,
		Detail: fmt.Sprintf("%[2]s leads group %[1]q with token %[3]d at %[4]s, and not %[5]s: call that node", group, leader, token, address, node),
		More:   map[string]any{"leader": leader, "leader_address": address, "current_token": token},
	}
}

// NoLeader is the problem that no leader is known.
func NoLeader(group string, last string, token fence.Token, after time.Duration) *httpapi.Problem {
	detail := fmt.Sprintf("no leader of group %q is known; try again in %v", group, after)
	if last != "" {
		detail = fmt.Sprintf("no leader of group %q is known (the last was %s with token %d); try again in %v", group, last, token, after)
	}
	return &httpapi.Problem{
		Status: http.StatusServiceUnavailable, Code: CodeNoLeader, Retryable: true, RetryAfter: after, Detail: detail,
		More: map[string]any{"current_token": token},
	}
}
