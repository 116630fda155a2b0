package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/app/httpapi"
)

// Rule is what a route demands of its callers.
type Rule struct {
	Verb Verb
	// Groups that the request is about: each must be allowed. Nil is AllGroups.
	Groups func(*http.Request) []string
	// Renewal marks what keeps a leader leading: it has a rate and places of its own.
	Renewal bool
	// Waits reports that the request will be held open, as a stream or a wait. It then
	// takes one of the identity's streams and no place among the others. Nil is never.
	Waits func(*http.Request) bool
}

// Guard puts the gate before a handler, which finds the caller by [From] and a body
// with a limit. It answers what it refuses. The error is that of a rule nobody could
// keep: a route is not to be served without one.
func (g *Gate) Guard(rule Rule, next http.HandlerFunc) (http.HandlerFunc, error) {
	if rule.Verb != Open && !slices.Contains(Verbs(), rule.Verb) {
		return nil, fmt.Errorf("access: a route has the verb %q, wanted open or one of %v", rule.Verb, Verbs())
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > g.cfg.Limits.BodyBytes {
			httpapi.WriteProblem(w, &httpapi.Problem{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large", Detail: fmt.Sprintf("the body is larger than %d bytes", g.cfg.Limits.BodyBytes)})
			return
		}
		var id Identity
		if rule.Verb != Open {
			var err error
			if id, err = g.check(r, rule); err != nil {
				answer(w, err)
				return
			}
		}
		leave, err := g.enter(r, rule, id)
		if err != nil {
			g.refused(r, id, "", err)
			answer(w, err)
			return
		}
		defer leave()
		r = r.WithContext(context.WithValue(r.Context(), callerKey{}, &admitted{id, r.RemoteAddr}))
		if r.Body != http.NoBody {
			r.Body = http.MaxBytesReader(w, r.Body, g.cfg.Limits.BodyBytes)
		}
		next(w, r)
	}, nil
}

func answer(w http.ResponseWriter, err error) {
	var p *httpapi.Problem
	if !errors.As(err, &p) {
		p = &httpapi.Problem{Status: http.StatusForbidden, Code: "denied", Detail: err.Error()}
	}
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="tenure"`)
	}
	httpapi.WriteProblem(w, p)
}

// enter takes the place that a request needs while it is under way.
func (g *Gate) enter(r *http.Request, rule Rule, id Identity) (leave func(), err error) {
	l := g.ordinary
	switch {
	case rule.Waits != nil && rule.Waits(r):
		return g.Stream(id)
	case rule.Verb == Open:
		l = g.open
	case rule.Renewal:
		l = g.renewals
	}
	if !l.enter(r.Context()) {
		return nil, &httpapi.Problem{
			Status: http.StatusServiceUnavailable, Code: "busy", Retryable: true, RetryAfter: time.Second,
			Detail: "more requests are under way than the service takes on; try again in a second",
		}
	}
	return l.leave, nil
}

// Stream takes one of the identity's streams until leave is called. The error is a
// *httpapi.Problem, 429.
func (g *Gate) Stream(id Identity) (leave func(), err error) {
	const soon = 5 * time.Second
	if !g.streams.enter(context.Background()) {
		return nil, tooMany("too_many_streams", soon, fmt.Sprintf("the service has %d streams and waits open, and takes no more", g.cfg.Limits.Streams))
	}
	if id.How == Loopback || id.How == "" {
		return sync.OnceFunc(g.streams.leave), nil
	}
	table := g.known
	if id.Anonymous() {
		table = g.strangers
	}
	var its *caller
	table.with(id.key, g.cfg.Now(), func(c *caller) {
		if c.streams < g.cfg.Limits.StreamsEach {
			c.streams++
			its = c
		}
	})
	if its == nil {
		g.streams.leave()
		return nil, tooMany("too_many_streams", soon, fmt.Sprintf("%s has %d streams and waits open, and is allowed no more: close one", id, g.cfg.Limits.StreamsEach))
	}
	return sync.OnceFunc(func() {
		table.mu.Lock()
		its.streams--
		table.mu.Unlock()
		g.streams.leave()
	}), nil
}

// Quota is something that is counted in the store, by the service.
type Quota string

// The quotas.
const (
	GroupsHeld  Quota = "groups"     // by one identity
	CandidateIn Quota = "candidates" // of one group
)

// Room returns a problem (429) unless more may be added to the have that there are. A
// count that is read before the change can be passed by callers at the same instant, by
// as many as they are: a quota is a dam, not a fence.
func (g *Gate) Room(q Quota, have, more int) error {
	most, of := g.cfg.Limits.GroupsEach, "one identity may hold"
	if q == CandidateIn {
		most, of = g.cfg.Limits.Candidates, "may stand for one group"
	}
	if more <= most-have {
		return nil
	}
	g.limited.Add(1)
	return &httpapi.Problem{
		Status: http.StatusTooManyRequests, Code: "quota_" + string(q), Retryable: true, RetryAfter: 10 * time.Second,
		Detail: fmt.Sprintf("there are %d %s, and no more than %d %s; give some up, or ask the operator for a larger quota", have, q, most, of),
		More:   map[string]any{"quota": most, "have": have},
	}
}
