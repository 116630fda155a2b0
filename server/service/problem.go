package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/operator"
)

// engineRetry is when to ask again if the engine did not answer.
const engineRetry = time.Second

func bad(code, format string, args ...any) *httpapi.Problem {
	return &httpapi.Problem{Status: http.StatusBadRequest, Code: code, Detail: fmt.Sprintf(format, args...)}
}

// explain turns an error of a store into what a caller gets.
func explain(err error) *httpapi.Problem {
	var p *httpapi.Problem
	var bar *lease.BarError
	var argument *lease.ArgumentError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &bar):
		return barred(bar)
	case errors.As(err, &argument):
		return bad("bad_argument", "%s", httpapi.Plain(argument))
	case errors.Is(err, lease.ErrInvalid):
		return bad("bad_argument", "%s", httpapi.Plain(err))
	case errors.Is(err, operator.ErrRegisterFull):
		return &httpapi.Problem{
			Status: http.StatusTooManyRequests, Code: "quota_created_groups", RetryAfter: time.Minute,
			Detail: "this deployment has as many created groups as it can list: delete some, or let campaigns create them (--groups=open)",
		}
	case errors.Is(err, lease.ErrRewound):
		return &httpapi.Problem{
			Status: http.StatusServiceUnavailable, Code: "rewound", Retryable: true, RetryAfter: engineRetry,
			Detail: "the engine went back behind what it had acknowledged, so nobody may lead: an operator has to raise the epoch",
		}
	case errors.Is(err, lease.ErrNewer):
		return &httpapi.Problem{
			Status: http.StatusServiceUnavailable, Code: "newer_format", Retryable: true, RetryAfter: engineRetry,
			Detail: "a newer version of this service has written what this instance cannot read: ask another instance, and upgrade this one",
		}
	case errors.Is(err, lease.ErrBusy):
		return &httpapi.Problem{
			Status: http.StatusTooManyRequests, Code: "busy", Retryable: true, RetryAfter: engineRetry,
			Detail: "too much is waiting for this session already: try again later",
		}
	case errors.Is(err, lease.ErrSessionDead):
		return &httpapi.Problem{
			Status: http.StatusConflict, Code: "session_dead",
			Detail: "the session has ended, and with it everything it led: stop acting now, then open another",
		}
	case errors.Is(err, lease.ErrConflict):
		return &httpapi.Problem{
			Status: http.StatusConflict, Code: "conflict", Retryable: true,
			Detail: "it was changed by somebody else meanwhile: look again, then try again",
		}
	case errors.Is(err, context.Canceled):
		return &httpapi.Problem{
			Status: http.StatusServiceUnavailable, Code: "stopping", Retryable: true, RetryAfter: engineRetry,
			Detail: "this instance is stopping: ask another",
		}
	}
	return &httpapi.Problem{
		Status: http.StatusServiceUnavailable, Code: "no_quorum", Retryable: true, RetryAfter: engineRetry,
		Detail: "the engine did not answer in time, so nothing is known and the outcome may be either: send the same request again; " +
			"whoever leads leads on until its TTL has passed",
	}
}

// led adds who leads to a problem.
func led(p *httpapi.Problem, v lease.View, retry time.Duration) *httpapi.Problem {
	more := map[string]any{"group": v.Group, "term": v.Token, "state": v.State.String()}
	if v.State == tenure.Led {
		more["leader_node_id"] = v.Candidate.ID
		if v.Candidate.Address != "" {
			more["leader_address"] = v.Candidate.Address
		}
	}
	if retry > 0 {
		more["retry_after_ms"] = max(retry.Milliseconds(), 1)
	}
	for k, x := range p.More {
		more[k] = x
	}
	p.More = more
	return p
}

// knowing adds who leads to a refusal, where that is known and not said yet.
func knowing(err error, v lease.View) error {
	var p *httpapi.Problem
	if !errors.As(said(err), &p) || v.Group == "" || p.More["state"] != nil {
		return err
	}
	return led(p, v, 0)
}

// whoLeads says it in words.
func whoLeads(v lease.View) string {
	if v.State != tenure.Led {
		return fmt.Sprintf("group %q has no leader (newest term %d)", v.Group, v.Token)
	}
	since := ""
	if n := len(v.Terms); n > 0 {
		since = ", since " + v.Terms[n-1].Begin.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("group %q is led by %q (term %d%s)", v.Group, v.Candidate.ID, v.Token, since)
}

// notElected is the answer to a campaign that another has won.
func (s *Service) notElected(c *contest, v lease.View) *httpapi.Problem {
	retry := jittered(s.backoff(c.policy, v)).Round(time.Millisecond)
	if s.otherProcess(c, v) {
		return led(&httpapi.Problem{
			Status: http.StatusConflict, Code: "node_id_in_use", Retryable: true, RetryAfter: retry,
			Detail: fmt.Sprintf("%s, and that is another process with this node id: give each process its own node id; "+
				"to retry a call, send the same instance; to wait until that process ends, add ?wait=30s", whoLeads(v)),
		}, v, retry)
	}
	return led(&httpapi.Problem{
		Status: http.StatusConflict, Code: "not_leader", Retryable: true, RetryAfter: retry,
		Detail: fmt.Sprintf("%s: try again after %v, or stand in line with ?wait=30s", whoLeads(v), retry),
	}, v, retry)
}

// notLeader tells somebody who may believe to lead that it does not.
func notLeader(v lease.View) *httpapi.Problem {
	return led(&httpapi.Problem{
		Status: http.StatusConflict, Code: "not_leader",
		Detail: "stop acting now: this term is over; " + whoLeads(v) + "; to lead again, campaign",
	}, v, 0)
}
