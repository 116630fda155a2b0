package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/tenurehq/tenure"
	rules "github.com/tenurehq/tenure/internal/policy"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
)

// engineRetry is when to retry if the engine did not answer.
const engineRetry = time.Second

func bad(code, format string, args ...any) *httpapi.Problem {
	return httpapi.Refuse(http.StatusBadRequest, code, format, args...)
}

// explain returns the problem for an error of a store.
func explain(err error) *httpapi.Problem {
	var p *httpapi.Problem
	var bar *store.BarError
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &bar):
		return barred(bar)
	case is(store.ErrInvalid):
		if argument := (*store.ArgumentError)(nil); errors.As(err, &argument) {
			err = argument
		}
		return bad("bad_argument", "%s", httpapi.Plain(err))
	case is(store.ErrRewound):
		return httpapi.Refuse(http.StatusServiceUnavailable, "rewound", "the engine lost data that it had acknowledged, so nobody may lead: an operator must raise the epoch").Retry(engineRetry)
	case is(store.ErrNewer):
		return httpapi.Refuse(http.StatusServiceUnavailable, "newer_format", "a newer version of this service wrote data that this instance cannot read: ask another instance, and upgrade this one").Retry(engineRetry)
	case is(store.ErrBusy):
		return httpapi.Refuse(http.StatusTooManyRequests, "busy", "too many requests are waiting for this session: retry later").Retry(engineRetry)
	case is(store.ErrSessionDead):
		return httpapi.Refuse(http.StatusConflict, "session_dead", "the session has ended, and so has every term in it: stop acting now, then open another session")
	case is(store.ErrConflict):
		return httpapi.Refuse(http.StatusConflict, "conflict", "another caller changed it at the same time: read it again, then retry").Retry(0)
	case is(context.Canceled):
		return httpapi.Refuse(http.StatusServiceUnavailable, "stopping", "this instance is stopping: ask another").Retry(engineRetry)
	}
	return httpapi.Refuse(http.StatusServiceUnavailable, "no_quorum",
		"the engine did not answer in time, so the outcome is unknown: send the same request again; a leader leads until its TTL has passed").Retry(engineRetry)
}

// barred returns the problem for a rule that keeps a node from leading.
func barred(bar *store.BarError) *httpapi.Problem {
	p := &httpapi.Problem{Status: http.StatusConflict, Code: bar.Code, Detail: bar.Detail}
	switch bar.Code {
	case rules.NoGroup:
		p.Status, p.Detail = http.StatusNotFound, bar.Detail+howToCreate(bar.Group)
	case rules.NotAMember:
		p.Status = http.StatusForbidden
	case rules.TTLBounds:
		return ttlProblem(bar.TTL.Milliseconds(), bar.MinTTL, bar.MaxTTL)
	}
	if bar.Left > 0 {
		return p.Retry(bar.Left).With(map[string]any{"group": bar.Group, "retry_after_ms": max(bar.Left.Milliseconds(), 1)})
	}
	return p
}

// barProblem replaces a BarError by its problem.
func barProblem(err error) error {
	if bar := (*store.BarError)(nil); errors.As(err, &bar) {
		return barred(bar)
	}
	return err
}

func unknownGroup(group string) *httpapi.Problem {
	return httpapi.Refuse(http.StatusNotFound, "unknown_group", "there is no group %q: it was never created and never led%s", clip(group), howToCreate(group))
}

func howToCreate(group string) string {
	return "; an operator creates it with `tenure policy set " + clip(group) + "` or PUT /v1/groups/" + clip(group)
}

func ttlProblem(ms int64, least, most time.Duration) *httpapi.Problem {
	return bad("ttl_out_of_bounds", "ttl_ms = %d must be from %d to %d", ms, least.Milliseconds(), most.Milliseconds()).
		With(map[string]any{"min_ttl_ms": least.Milliseconds(), "max_ttl_ms": most.Milliseconds()})
}

func instanceReused(node string) *httpapi.Problem {
	return httpapi.Refuse(http.StatusConflict, "instance_reused", "node %q has a living session of this instance that was opened with another ttl_ms, metadata, address or priority: "+
		"send the same values again, resign first, or use a new instance", node)
}

func outOfScope(group string) *httpapi.Problem {
	return httpapi.Refuse(http.StatusConflict, "out_of_scope", "the session was not opened for group %q: open one that includes it", group)
}

func notYours() *httpapi.Problem {
	return httpapi.Refuse(http.StatusForbidden, "not_your_session", "the session of the handle belongs to another node: a node may use its own sessions only")
}

func denied(verb auth.Verb, group string) *httpapi.Problem {
	return httpapi.Refuse(http.StatusForbidden, "denied", "the policy of this service does not allow the caller to %s on %q; ask its operator", verb, clip(group))
}

func noSuccessor(group, node, why string) error {
	return errors.Join(store.ErrSuccessor, httpapi.Refuse(http.StatusConflict, "no_successor",
		"node %q cannot lead group %q next: %s; nothing was changed: resign without a successor, or name another", node, group, why))
}

func badNode(field, node string) *httpapi.Problem {
	return bad("bad_argument", "%s: %q is not a valid node name", field, clip(node))
}

// led adds the leader of a group to a problem.
func led(p *httpapi.Problem, v store.View, retry time.Duration) *httpapi.Problem {
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
	maps.Copy(more, p.More)
	return p.With(more)
}

// withLeader adds the leader to a refusal, if it is known and not there yet.
func withLeader(err error, v store.View) error {
	var p *httpapi.Problem
	if !errors.As(barProblem(err), &p) || v.Group == "" || p.More["state"] != nil {
		return err
	}
	return led(p, v, 0)
}

// whoLeads describes the leader of a group.
func whoLeads(v store.View) string {
	if v.State != tenure.Led {
		return fmt.Sprintf("group %q has no leader (newest term %d)", v.Group, v.Token)
	}
	since := ""
	if n := len(v.Terms); n > 0 {
		since = ", since " + v.Terms[n-1].Begin.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("group %q is led by %q (term %d%s)", v.Group, v.Candidate.ID, v.Token, since)
}

// notElected is the answer to a campaign that another candidate has won.
func (s *Service) notElected(c *contest, v store.View) *httpapi.Problem {
	retry := jittered(s.backoff(c.policy, v)).Round(time.Millisecond)
	p := httpapi.Refuse(http.StatusConflict, "not_leader", "%s: retry after %v, or wait for a vacancy with ?wait=30s", whoLeads(v), retry)
	if s.otherProcess(c, v) {
		p = httpapi.Refuse(http.StatusConflict, "node_id_in_use", "%s, and that is another process with this node id: give each process its own node id; "+
			"to retry a call, send the same instance; to wait until that process ends, add ?wait=30s", whoLeads(v))
	}
	return led(p.Retry(retry), v, retry)
}

// notLeader tells a caller that may believe that it leads that it does not.
func notLeader(v store.View) *httpapi.Problem {
	return led(httpapi.Refuse(http.StatusConflict, "not_leader", "stop acting now: this term is over; %s; to lead again, campaign", whoLeads(v)), v, 0)
}

func clip(s string) string {
	const most = 100
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
