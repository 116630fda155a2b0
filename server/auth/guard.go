package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/server/auth/limit"
	"github.com/tenurehq/tenure/server/httpapi"
)

// Rule says what a route requires of its callers.
type Rule struct {
	Verb Verb
	// Or are other verbs that are enough to pass. The handler checks which one it needs.
	Or []Verb
	// Groups of the request; each must be allowed. Nil is AllGroups.
	Groups func(*http.Request) []string
	// Page: the route serves a web page, which needs no identity. If no credentials are
	// configured, it must be addressed as the other routes must.
	Page bool
	// Renewal: the route keeps terms alive or ends them in order. It has a rate and slots of
	// its own.
	Renewal bool
	// Campaign: the route may begin terms. Few of them are handled at once, so that the engine
	// has time for renewals. A handler that waits calls [Yield] first.
	Campaign bool
	// Waits reports whether the request will be held open, as a stream or a wait. Such a
	// request takes one of the streams of the identity and no other slot. Nil is never.
	Waits func(*http.Request) bool
}

// AnyGroup is the Groups of a route whose handler checks the groups in the body.
func AnyGroup(*http.Request) []string { return []string{SomeGroup} }

// Always is the Waits of a route that is always held open.
func Always(*http.Request) bool { return true }

// Guard puts the gate in front of a handler. The handler finds the caller with [From] and gets
// a body with a limit. The error is that of an invalid rule.
func (g *Gate) Guard(rule Rule, next http.HandlerFunc) (http.HandlerFunc, error) {
	for _, verb := range append([]Verb{rule.Verb}, rule.Or...) {
		if !slices.Contains(Verbs(), verb) && (verb != Open || len(rule.Or) > 0) {
			return nil, fmt.Errorf("auth: a route has the verb %q; want open or one of %v", verb, Verbs())
		}
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > g.cfg.Limits.BodyBytes {
			httpapi.WriteProblem(w, tooLarge(g.cfg.Limits.BodyBytes))
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
		if rule.Page && !g.cfg.credentials() {
			if _, err := g.anonymous(r); err != nil {
				g.refused(r, id, "", err)
				answer(w, err)
				return
			}
		}
		who := &admitted{id: id, remote: r.RemoteAddr}
		done, err := g.admit(w, r, rule, who)
		if err != nil {
			g.refused(r, id, "", err)
			answer(w, err)
			return
		}
		defer done()
		r = r.WithContext(context.WithValue(r.Context(), callerKey{}, who))
		if r.Body != http.NoBody {
			r.Body = http.MaxBytesReader(w, r.Body, g.cfg.Limits.BodyBytes)
		}
		next(w, r)
	}, nil
}

func answer(w http.ResponseWriter, err error) {
	var p *httpapi.Problem
	if !errors.As(err, &p) {
		p = refuse("%v", err)
	}
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="tenure"`)
	}
	httpapi.WriteProblem(w, p)
}

// admit takes the slots that a request needs. The body of a renewal is read before it takes
// its slot, within a short time, and one identity has only part of the slots: a caller that
// sends slowly must not delay the renewals of others.
func (g *Gate) admit(w http.ResponseWriter, r *http.Request, rule Rule, who *admitted) (done func(), err error) {
	id := who.id
	if rule.Campaign {
		return g.campaign(r, rule, who)
	}
	if !rule.Renewal {
		return g.enter(r, rule, id)
	}
	less := g.share(id, func(c *limit.Caller) *int { return &c.Renewing }, g.cfg.Limits.RenewalsEach)
	if less == nil {
		return nil, tooMany("too_many_requests", renewalBodyWithin, fmt.Sprintf("%s has %d renewals in progress, the most that it may have", id, g.cfg.Limits.RenewalsEach))
	}
	leave := func() {}
	if err = readSoon(w, r, min(g.cfg.Limits.BodyBytes, renewalBody)); err == nil {
		leave, err = g.enter(r, rule, id)
	}
	if err != nil {
		less()
		return nil, err
	}
	return func() { leave(); less() }, nil
}

const (
	codeIncomplete = "body_incomplete"
	codeTooLarge   = "body_too_large"
	// renewalBody is far more than the body of a renewal needs.
	renewalBody = 16 << 10
	// renewalBodyWithin is how long the body may take to arrive.
	renewalBodyWithin = 2 * time.Second
)

func tooLarge(most int64) *httpapi.Problem {
	return httpapi.Refuse(http.StatusRequestEntityTooLarge, codeTooLarge, "the body is larger than %d bytes", most)
}

// readSoon reads a small body completely.
func readSoon(w http.ResponseWriter, r *http.Request, most int64) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(renewalBodyWithin))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge(most)
	case err != nil:
		return httpapi.Refuse(http.StatusBadRequest, codeIncomplete, "the body ended early or arrived too slowly")
	}
	// A deadline that passes during the handler would look like a caller that has gone.
	_ = rc.SetReadDeadline(time.Time{})
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// share counts one more request of an identity, unless it has the most already: then less is
// nil. On loopback without credentials nothing is counted.
func (g *Gate) share(id Identity, of func(*limit.Caller) *int, most int) (less func()) {
	if id.How == Loopback || id.How == "" {
		return func() {}
	}
	return g.table(id).Share(id.key, g.cfg.Now(), of, most)
}

// enter takes the slot of a request.
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
	if !l.Enter(r.Context()) {
		return nil, busy()
	}
	return l.Leave, nil
}

// soon is a random time: callers that are refused together must not come back together.
func soon() time.Duration { return time.Second + rand.N(2*time.Second) }

func busy() *httpapi.Problem {
	p := tooMany("busy", soon(), "the service handles as many requests as it can")
	p.Status = http.StatusServiceUnavailable
	return p
}

// campaign takes the slots of a campaign. Its body is read after that, so that refusing a
// campaign costs little. It gives its slot back when it ends or calls Yield.
func (g *Gate) campaign(r *http.Request, rule Rule, who *admitted) (done func(), err error) {
	stream := func() {}
	if rule.Waits != nil && rule.Waits(r) {
		if stream, err = g.Stream(who.id); err != nil {
			return nil, err
		}
	}
	less := g.share(who.id, func(c *limit.Caller) *int { return &c.Running }, g.cfg.Limits.CampaignsEach)
	if less == nil {
		stream()
		return nil, tooMany("too_many_requests", soon(), fmt.Sprintf("%s has %d campaigns in progress, the most that it may have", who.id, g.cfg.Limits.CampaignsEach))
	}
	if !g.campaigns.Enter(r.Context()) {
		less()
		stream()
		return nil, busy()
	}
	who.yield = sync.OnceFunc(func() { g.campaigns.Leave(); less() })
	return func() { who.yield(); stream() }, nil
}

// Stream takes one of the streams of the identity until leave is called. The error is a
// *httpapi.Problem, 429.
func (g *Gate) Stream(id Identity) (leave func(), err error) {
	const retry = 5 * time.Second
	if !g.streams.Enter(context.Background()) {
		return nil, tooMany("too_many_streams", retry, fmt.Sprintf("the service has %d open streams and waits, the most that it may have", g.cfg.Limits.Streams))
	}
	less := g.share(id, func(c *limit.Caller) *int { return &c.Streams }, g.cfg.Limits.StreamsEach)
	if less == nil {
		g.streams.Leave()
		return nil, tooMany("too_many_streams", retry, fmt.Sprintf("%s has %d open streams and waits, the most that it may have: close one", id, g.cfg.Limits.StreamsEach))
	}
	return sync.OnceFunc(func() { less(); g.streams.Leave() }), nil
}

// Quota is something that the service counts in the store.
type Quota string

// The quotas.
const (
	GroupsHeld  Quota = "groups"     // by one identity
	CandidateIn Quota = "candidates" // of one group
)

// Room returns a problem (429) unless more can be added to have. Quotas are best-effort under
// concurrency: callers at the same moment can exceed them by as many as they are.
func (g *Gate) Room(q Quota, have, more int) error {
	most, of := g.cfg.Limits.GroupsEach, "one identity may hold"
	if q == CandidateIn {
		most, of = g.cfg.Limits.Candidates, "may campaign for one group"
	}
	if more <= most-have {
		return nil
	}
	g.limited.Add(1)
	return httpapi.Refuse(http.StatusTooManyRequests, "quota_"+string(q), "there are %d %s, and no more than %d %s; release some, or ask the operator for a larger quota", have, q, most, of).
		Retry(10 * time.Second).With(map[string]any{"quota": most, "have": have})
}
