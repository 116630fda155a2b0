package auth

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
)

// Gate checks every request to the service. It is safe for concurrent use.
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
	ordinary  *slots
	renewals  *slots
	campaigns *slots
	streams   *slots
	open      *slots
	suspects  *slots // unknown JWTs from addresses that sent many invalid ones
	audit     *auditor

	unidentified, denied, limited, busy, omitted atomic.Uint64

	closed    chan struct{}
	closeOnce sync.Once
	running   sync.WaitGroup
}

// New reads the files and returns a gate that reads them again until it is closed. It refuses
// a configuration that would leave the service open to other machines.
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
		ordinary:  newSlots(l.InFlight, l.Line, l.Patience),
		renewals:  newSlots(l.Renewals, l.Line, l.Patience),
		campaigns: newSlots(l.Campaigns, l.Line, l.Patience),
		streams:   newSlots(l.Streams, 0, 0),
		open:      newSlots(openSlots, openSlots, l.Patience),
		suspects:  newSlots(suspectSlots, suspectSlots*128, l.Patience),
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
	// openSlots is how many requests without an identity are handled at once.
	openSlots = 64
	// suspectSlots is how many JWTs of suspect addresses are verified at once: a flood of them
	// uses two processors at most, and a valid JWT among them waits a moment.
	suspectSlots = 2
)

// Close writes the rest of the audit and waits for it. Requests may still be checked after
// Close; they are not audited.
func (g *Gate) Close() {
	g.closeOnce.Do(func() { close(g.closed) })
	g.running.Wait()
}

// Check returns the caller if it may do verb to the group ([AllGroups] and [SomeGroup]
// included) and is within its rate. The error is a *httpapi.Problem: 400 for an invalid name,
// 401, 403, or 429 with Retry-After. A refusal is audited.
func (g *Gate) Check(r *http.Request, verb Verb, group string) (Identity, error) {
	return g.check(r, Rule{Verb: verb, Groups: func(*http.Request) []string { return []string{group} }})
}

func (g *Gate) check(r *http.Request, rule Rule) (Identity, error) {
	id, err := g.identify(r)
	if err == nil {
		err = g.rate(id, rule.Renewal)
	}
	if err != nil {
		g.refused(r, id, "", err)
		return Identity{}, err
	}
	groups := []string{AllGroups}
	if rule.Groups != nil {
		groups = rule.Groups(r)
	}
	if len(groups) == 0 {
		return Identity{}, httpapi.Refuse(http.StatusBadRequest, "no_group", "the request names no group")
	}
	for _, group := range groups {
		if err := g.allowedAny(id, rule, group); err != nil {
			g.refused(r, id, group, err)
			return Identity{}, err
		}
	}
	return id, nil
}

// allowedAny returns a problem unless one of the verbs of the rule is allowed on the group.
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
	if group != AllGroups && group != SomeGroup && !store.ValidName(group) {
		return httpapi.Refuse(http.StatusBadRequest, "bad_name", "the name of the group must be lower-case letters, digits, dots, underscores and dashes, at most 63")
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
	return refuse("%s may not %s on %s: the policy of this service does not allow it; ask its operator", id, verb, on)
}

func refuse(format string, args ...any) *httpapi.Problem {
	return httpapi.Refuse(http.StatusForbidden, "denied", format, args...)
}

// May reports whether the policy gives id the verb on the group. It counts and audits nothing:
// it is for choosing what to show.
func (g *Gate) May(id Identity, verb Verb, group string) bool {
	if verb == Open || id.Anonymous() && !g.cfg.credentials() {
		return true
	}
	p := g.policy.Load()
	return id.Name != "" && p != nil && !p.refused[id.Name] && p.allows(p.rolesOf(id.Name), verb, group)
}

// Recheck returns a problem (401 or 403) if something that was allowed at the beginning of a
// stream or a wait is not allowed any more: the credential has expired or was removed from the
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

// table returns the counters that include the caller.
func (g *Gate) table(id Identity) *callers {
	if id.Anonymous() {
		return g.strangers
	}
	return g.known
}

func (g *Gate) rate(id Identity, renewal bool) error {
	if id.How == Loopback {
		return nil
	}
	var wait time.Duration
	what, now := "requests", g.cfg.Now()
	g.table(id).with(id.key, now, func(c *caller) {
		if renewal {
			what, wait = "renewals", c.renewals.take(now)
		} else {
			wait = c.ordinary.take(now)
		}
	})
	if wait > 0 {
		return tooMany("too_many_requests", wait, fmt.Sprintf("%s makes more %s than it is allowed", id, what))
	}
	return nil
}

func tooMany(code string, wait time.Duration, detail string) *httpapi.Problem {
	return httpapi.Refuse(http.StatusTooManyRequests, code, "%s; retry in %v", detail, wait.Round(time.Millisecond)).Retry(wait).
		With(map[string]any{"retry_after_ms": (wait + time.Millisecond - 1).Milliseconds()})
}

// refused counts and audits a refusal.
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
		return // not a denial
	case p.Status == http.StatusForbidden:
		g.denied.Add(1)
	case p.Code == codeIncomplete || p.Code == codeTooLarge:
		return // there is no request yet
	}
	what := r.Pattern
	if what == "" {
		what = r.Method + " " + r.URL.Path
	}
	g.tell(id, Entry{Who: id.Name, How: id.How, Remote: host(r.RemoteAddr), What: what, Group: group, Result: result, Reason: err.Error()})
}

// tell audits a denial or failure, up to a rate for each caller, so that nobody can push other
// entries out of the audit with refused requests.
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

// Stats are numbers for the metrics. Counts are since the start.
type Stats struct {
	// Refusals: no valid credentials, not allowed, over a rate or quota, no free slot.
	Unauthenticated, Denied, Limited, Busy uint64
	// Omitted counts refusals and failures that were not written to the audit.
	Omitted uint64
	// AuditLost counts entries that could not be written; AuditWaiting those that still may be.
	AuditLost    uint64
	AuditWaiting int
	// AuditFault says why the audit cannot be written; empty if it can.
	AuditFault string
	// Identities and Addresses that have counters.
	Identities, Addresses int
	// Requests that are being handled.
	InFlight, Renewals, Campaigns, Streams int
}

// Stats returns the current numbers.
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
