package auth

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/httpapi"
)

// Gate stands before every route of the service. It is safe for concurrent use.
type Gate struct {
	cfg     Config
	origins *http.CrossOriginProtection

	pair   atomic.Pointer[tls.Certificate]
	cas    atomic.Pointer[authorities]
	tokens atomic.Pointer[tokens]
	policy atomic.Pointer[policy]
	jwt    *jwtReader

	filesMu sync.Mutex
	files   []*source

	known     *callers // by identity
	strangers *callers // by address
	ordinary  *lane
	renewals  *lane
	campaigns *lane
	streams   *lane
	open      *lane
	suspects  *lane // unknown JWTs, from addresses that sent many wrong ones
	audit     *auditor

	unidentified, denied, limited, busy, omitted atomic.Uint64

	closed    chan struct{}
	closeOnce sync.Once
	running   sync.WaitGroup
}

// New reads the files and returns a gate that keeps reading them until it is closed. It
// refuses a configuration that would leave the service open to other machines.
func New(cfg Config) (*Gate, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	l := cfg.Limits
	g := &Gate{
		cfg:       cfg,
		origins:   http.NewCrossOriginProtection(),
		jwt:       newJWTReader(cfg.JWT, cfg.Now),
		known:     newCallers(l),
		strangers: newCallers(l),
		ordinary:  newLane(l.InFlight, l.Line, l.Patience),
		renewals:  newLane(l.Renewals, l.Line, l.Patience),
		campaigns: newLane(l.Campaigns, l.Line, l.Patience),
		streams:   newLane(l.Streams, 0, 0),
		open:      newLane(openPlaces, openPlaces, l.Patience),
		suspects:  newLane(suspectPlaces, suspectPlaces*128, l.Patience),
		closed:    make(chan struct{}),
	}
	g.files = g.sources()
	if err := g.Reload(); err != nil {
		return nil, err
	}
	if cfg.Audit.Path != "" {
		var err error
		if g.audit, err = newAuditor(cfg.Audit, cfg.Log, cfg.Now); err != nil {
			return nil, err
		}
		g.running.Go(func() { g.audit.run(g.closed) })
	}
	if len(g.files) > 0 {
		g.running.Go(g.poll)
	}
	if !cfg.credentials() {
		cfg.Log.Warn("no credentials are configured: every caller may do everything under any name", "listen", cfg.Listen)
	}
	return g, nil
}

const (
	// openPlaces is how many requests without identity are handled at once.
	openPlaces = 64
	// suspectPlaces is how many signatures of suspects are looked at at once: a flood of
	// them costs two processors at most, and a valid token in it waits for a moment.
	suspectPlaces = 2
)

// Close writes down what is left of the audit and waits for that. Requests may still
// be checked after it; they are not audited.
func (g *Gate) Close() {
	g.closeOnce.Do(func() { close(g.closed) })
	g.running.Wait()
}

// Check returns who is asking, if they may do verb to group ([AllGroups] and [SomeGroup]
// included) and not too often. The error is a *httpapi.Problem: 400 for a name that cannot
// be a group's, 401, 403, or 429 with Retry-After. A refusal is audited.
func (g *Gate) Check(r *http.Request, verb Verb, group string) (Identity, error) {
	return g.check(r, Rule{Verb: verb, Groups: func(*http.Request) []string { return []string{group} }})
}

func (g *Gate) check(r *http.Request, rule Rule) (Identity, error) {
	id, err := g.identify(r)
	if err != nil {
		g.refused(r, id, "", err)
		return Identity{}, err
	}
	if err := g.rate(id, rule.Renewal); err != nil {
		g.refused(r, id, "", err)
		return Identity{}, err
	}
	groups := []string{AllGroups}
	if rule.Groups != nil {
		groups = rule.Groups(r)
	}
	if len(groups) == 0 {
		err := &httpapi.Problem{Status: http.StatusBadRequest, Code: "no_group", Detail: "the request names no group"}
		return Identity{}, err
	}
	for _, group := range groups {
		if err := g.allowedAny(id, rule, group); err != nil {
			g.refused(r, id, group, err)
			return Identity{}, err
		}
	}
	return id, nil
}

// allowedAny returns a problem unless one of the rule's verbs is allowed on the group.
func (g *Gate) allowedAny(id Identity, rule Rule, group string) error {
	for _, verb := range rule.Or {
		if g.allowed(id, verb, group) == nil {
			return nil
		}
	}
	return g.allowed(id, rule.Verb, group)
}

// allowed returns a problem unless id has the verb on the group.
func (g *Gate) allowed(id Identity, verb Verb, group string) error {
	if group != AllGroups && group != SomeGroup && !lease.ValidName(group) {
		return &httpapi.Problem{Status: http.StatusBadRequest, Code: "bad_name", Detail: "the group's name is not lower-case letters, digits, dots, underscores and dashes, at most 63"}
	}
	if g.May(id, verb, group) {
		return nil
	}
	on := fmt.Sprintf("group %q", group)
	switch group {
	case AllGroups:
		on = "all groups"
	case SomeGroup:
		on = "any group"
	}
	return &httpapi.Problem{
		Status: http.StatusForbidden, Code: "denied",
		Detail: fmt.Sprintf("%s may not %s on %s: the policy of this service does not allow it; ask its operator", id, verb, on),
	}
}

// May reports whether the policy in force gives id the verb on group. It counts and
// audits nothing: it is for choosing what to show.
func (g *Gate) May(id Identity, verb Verb, group string) bool {
	switch {
	case verb == Open:
		return true
	case id.Anonymous() && !g.cfg.credentials():
		return true
	case id.Name == "":
		return false
	}
	p := g.policy.Load()
	return p != nil && !p.refused[id.Name] && p.allows(p.rolesOf(id.Name), verb, group)
}

// Recheck returns a problem (401 or 403) when what was allowed at the beginning of a
// stream or a wait is not any more: the credential has ended or is gone from the
// files, or the policy has changed.
func (g *Gate) Recheck(id Identity, verb Verb, group string) error {
	if id.valid != nil {
		if err := id.valid(); err != nil {
			return unauthenticated(err.Error())
		}
	}
	if !id.Until.IsZero() && !g.cfg.Now().Before(id.Until) {
		return unauthenticated("the credentials have expired")
	}
	return g.allowed(id, verb, group)
}

func (g *Gate) rate(id Identity, renewal bool) error {
	if id.How == Loopback {
		return nil
	}
	table := g.known
	if id.Anonymous() {
		table = g.strangers
	}
	var wait time.Duration
	now := g.cfg.Now()
	table.with(id.key, now, func(c *caller) {
		if renewal {
			wait = c.renewals.take(now)
		} else {
			wait = c.ordinary.take(now)
		}
	})
	if wait > 0 {
		what := "requests"
		if renewal {
			what = "renewals"
		}
		return tooMany("too_many_requests", wait, fmt.Sprintf("%s makes more %s than it is allowed", id, what))
	}
	return nil
}

func tooMany(code string, wait time.Duration, detail string) *httpapi.Problem {
	return &httpapi.Problem{
		Status: http.StatusTooManyRequests, Code: code, Retryable: true, RetryAfter: wait,
		Detail: fmt.Sprintf("%s; try again in %v", detail, wait.Round(time.Millisecond)),
		More:   map[string]any{"retry_after_ms": (wait + time.Millisecond - 1).Milliseconds()},
	}
}

// refused counts and audits.
func (g *Gate) refused(r *http.Request, id Identity, group string, err error) {
	result := Denied
	var p *httpapi.Problem
	switch {
	case !errors.As(err, &p):
	case p.Status == http.StatusUnauthorized:
		g.unidentified.Add(1)
	case p.Status == http.StatusTooManyRequests:
		result = Limited
		g.limited.Add(1)
	case p.Status == http.StatusServiceUnavailable:
		g.busy.Add(1)
		return // the service's trouble, not a denial
	case p.Status == http.StatusForbidden:
		g.denied.Add(1)
	case p.Code == codeIncomplete || p.Code == codeTooLarge:
		return // nothing was asked yet
	}
	what := r.Pattern
	if what == "" {
		what = r.Method + " " + r.URL.Path
	}
	g.tell(id, Entry{Who: id.Name, How: id.How, Remote: host(r.RemoteAddr), What: what, Group: group, Result: result, Reason: err.Error()})
}

// tell audits what did not come about, up to a rate for each caller: nobody can push the
// rest out of the audit by being refused.
func (g *Gate) tell(id Identity, e Entry) {
	table, key := g.known, id.key
	if id.Name == "" {
		table, key = g.strangers, e.Remote
	}
	write, omitted, now := false, 0, g.cfg.Now()
	table.with(key, now, func(c *caller) {
		if c.denials.take(now) > 0 {
			c.silent++
			return
		}
		write, omitted, c.silent = true, c.silent, 0
	})
	if !write {
		g.omitted.Add(1)
		return
	}
	g.write(e, omitted)
}

// Stats are numbers for the metrics; the counts are since the start.
type Stats struct {
	// Refused: without credentials that hold, by the policy, by a rate or quota, for want of a place.
	Unauthenticated, Denied, Limited, Busy uint64
	// Omitted are refusals and failures that were counted and not written to the audit.
	Omitted uint64
	// AuditLost are entries that could not be written; AuditWaiting those that may yet be.
	AuditLost    uint64
	AuditWaiting int
	// AuditFault says why the audit is not being written; empty if it is.
	AuditFault string
	// Identities and Addresses whose use is remembered.
	Identities, Addresses int
	// InFlight, Renewals, Campaigns and Streams are under way.
	InFlight, Renewals, Campaigns, Streams int
}

// Stats returns the numbers as they are now.
func (g *Gate) Stats() Stats {
	s := Stats{
		Unauthenticated: g.unidentified.Load(), Denied: g.denied.Load(), Limited: g.limited.Load(), Busy: g.busy.Load(), Omitted: g.omitted.Load(),
		Identities: g.known.count(), Addresses: g.strangers.count(),
		InFlight: g.ordinary.used(), Renewals: g.renewals.used(), Campaigns: g.campaigns.used(), Streams: g.streams.used(),
	}
	if g.audit != nil {
		s.AuditWaiting, s.AuditLost, s.AuditFault = g.audit.state()
	}
	return s
}
