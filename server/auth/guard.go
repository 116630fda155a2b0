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

	"github.com/tenurehq/tenure/server/httpapi"
)

// Rule is what a route demands of its callers.
type Rule struct {
	Verb Verb
	// Or are verbs that do as well. The handler checks which of them it needs.
	Or []Verb
	// Groups that the request is about: each must be allowed. Nil is AllGroups.
	Groups func(*http.Request) []string
	// Renewal marks what keeps a leader leading, and what ends a term in order: it has a
	// rate and places of its own.
	Renewal bool
	// Campaign marks what may begin a term. A few of them are handled at once, so that the
	// engine has time for renewals; a handler that waits calls [Yield] first.
	Campaign bool
	// Waits reports that the request will be held open, as a stream or a wait. It then
	// takes one of the identity's streams and no place among the others. Nil is never.
	Waits func(*http.Request) bool
}

// Guard puts the gate before a handler, which finds the caller by [From] and a body
// with a limit. It answers what it refuses. The error is that of a rule nobody could
// keep: a route is not to be served without one.
func (g *Gate) Guard(rule Rule, next http.HandlerFunc) (http.HandlerFunc, error) {
	for _, verb := range append([]Verb{rule.Verb}, rule.Or...) {
		if !slices.Contains(Verbs(), verb) && (verb != Open || len(rule.Or) > 0) {
			return nil, fmt.Errorf("access: a route has the verb %q, wanted open or one of %v", verb, Verbs())
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
		p = &httpapi.Problem{Status: http.StatusForbidden, Code: "denied", Detail: err.Error()}
	}
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="tenure"`)
	}
	httpapi.WriteProblem(w, p)
}

// admit takes what a request needs while it is under way. A renewal is read before it
// takes its place, and soon or not at all, and one identity has a part of the places only:
// they are for whoever has something to renew, not for whoever sends slowly.
func (g *Gate) admit(w http.ResponseWriter, r *http.Request, rule Rule, who *admitted) (done func(), err error) {
	id := who.id
	if rule.Campaign {
		return g.campaign(r, rule, who)
	}
	if !rule.Renewal {
		return g.enter(r, rule, id)
	}
	less := g.share(id, func(c *caller) *int { return &c.renewing }, g.cfg.Limits.RenewalsEach)
	if less == nil {
		return nil, tooMany("too_many_requests", renewalBodyWithin, fmt.Sprintf("%s has %d renewals under way, and is allowed no more", id, g.cfg.Limits.RenewalsEach))
	}
	if err := readSoon(w, r, min(g.cfg.Limits.BodyBytes, renewalBody)); err != nil {
		less()
		return nil, err
	}
	leave, err := g.enter(r, rule, id)
	if err != nil {
		less()
		return nil, err
	}
	return func() { leave(); less() }, nil
}

const (
	codeIncomplete = "body_incomplete"
	codeTooLarge   = "body_too_large"
	// renewalBody is far more than a renewal says.
	renewalBody = 16 << 10
	// renewalBodyWithin is how long its body may take to arrive.
	renewalBodyWithin = 2 * time.Second
)

func tooLarge(most int64) *httpapi.Problem {
	return &httpapi.Problem{Status: http.StatusRequestEntityTooLarge, Code: codeTooLarge, Detail: fmt.Sprintf("the body is larger than %d bytes", most)}
}

// readSoon reads a small body whole.
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
		return &httpapi.Problem{Status: http.StatusBadRequest, Code: codeIncomplete, Detail: "the body ended early or came too slowly"}
	}
	// While it is handled, a deadline that passes would look like a caller that went away.
	_ = rc.SetReadDeadline(time.Time{})
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// share counts what one identity has under way, unless there are as many already: then
// less is nil. On loopback without credentials there is nobody to count.
func (g *Gate) share(id Identity, of func(*caller) *int, most int) (less func()) {
	if id.How == Loopback || id.How == "" {
		return func() {}
	}
	table := g.known
	if id.Anonymous() {
		table = g.strangers
	}
	var its *caller
	table.with(id.key, g.cfg.Now(), func(c *caller) {
		if n := of(c); *n < most {
			*n++
			its = c
		}
	})
	if its == nil {
		return nil
	}
	return func() {
		table.mu.Lock()
		defer table.mu.Unlock()
		*of(its)--
	}
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
		return nil, busy()
	}
	return l.leave, nil
}

// busy tells callers to come back at different times: together they would find the same.
func busy() *httpapi.Problem {
	wait := time.Second + rand.N(2*time.Second)
	return &httpapi.Problem{
		Status: http.StatusServiceUnavailable, Code: "busy", Retryable: true, RetryAfter: wait,
		Detail: fmt.Sprintf("more requests are under way than the service takes on; try again in %v", wait.Round(time.Millisecond)),
		More:   map[string]any{"retry_after_ms": wait.Milliseconds()},
	}
}

// campaign takes what a campaign needs. Its body is read after that, so a campaign that is
// refused costs little. It leaves its place when it ends or calls Yield.
func (g *Gate) campaign(r *http.Request, rule Rule, who *admitted) (done func(), err error) {
	stream := func() {}
	if rule.Waits != nil && rule.Waits(r) {
		if stream, err = g.Stream(who.id); err != nil {
			return nil, err
		}
	}
	less := g.share(who.id, func(c *caller) *int { return &c.running }, g.cfg.Limits.CampaignsEach)
	if less == nil {
		stream()
		return nil, tooMany("too_many_requests", time.Second+rand.N(2*time.Second), fmt.Sprintf("%s has %d campaigns under way, and is allowed no more", who.id, g.cfg.Limits.CampaignsEach))
	}
	if !g.campaigns.enter(r.Context()) {
		less()
		stream()
		return nil, busy()
	}
	who.yield = sync.OnceFunc(func() {
		g.campaigns.leave()
		less()
	})
	return func() {
		who.yield()
		stream()
	}, nil
}

// Stream takes one of the identity's streams until leave is called. The error is a
// *httpapi.Problem, 429.
func (g *Gate) Stream(id Identity) (leave func(), err error) {
	const soon = 5 * time.Second
	if !g.streams.enter(context.Background()) {
		return nil, tooMany("too_many_streams", soon, fmt.Sprintf("the service has %d streams and waits open, and takes no more", g.cfg.Limits.Streams))
	}
	less := g.share(id, func(c *caller) *int { return &c.streams }, g.cfg.Limits.StreamsEach)
	if less == nil {
		g.streams.leave()
		return nil, tooMany("too_many_streams", soon, fmt.Sprintf("%s has %d streams and waits open, and is allowed no more: close one", id, g.cfg.Limits.StreamsEach))
	}
	return sync.OnceFunc(func() {
		less()
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
