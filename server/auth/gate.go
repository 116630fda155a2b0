package auth

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/server/auth/audit"
	"github.com/tenurehq/tenure/server/auth/bearer"
	"github.com/tenurehq/tenure/server/auth/limit"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
)

// Gate checks every request to the service. It is safe for concurrent use.
type Gate struct {
	cfg     Config
	origins *http.CrossOriginProtection

	pair        atomic.Pointer[tls.Certificate]
	cas         atomic.Pointer[authorities]
	credentials atomic.Pointer[bearer.Credentials]
	policy      atomic.Pointer[policy]
	jwt         *bearer.Verifier

	filesMu sync.Mutex
	files   []*source

	known     *limit.Callers // by identity
	strangers *limit.Callers // by address
	ordinary  *limit.Slots
	renewals  *limit.Slots
	campaigns *limit.Slots
	streams   *limit.Slots
	open      *limit.Slots
	suspects  *limit.Slots // unknown JWTs from addresses that sent many invalid ones
	audit     *audit.Writer

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
		jwt:       bearer.NewVerifier(cfg.JWT, cfg.Now),
		known:     limit.NewCallers(l),
		strangers: limit.NewCallers(l),
		ordinary:  limit.NewSlots(l.InFlight, l.Line, l.Patience),
		renewals:  limit.NewSlots(l.Renewals, l.Line, l.Patience),
		campaigns: limit.NewSlots(l.Campaigns, l.Line, l.Patience),
		streams:   limit.NewSlots(l.Streams, 0, 0),
		open:      limit.NewSlots(openSlots, openSlots, l.Patience),
		suspects:  limit.NewSlots(suspectSlots, suspectSlots*128, l.Patience),
		closed:    make(chan struct{}),
	}
	g.files = g.sources()
	if err := g.Reload(); err != nil {
		return nil, err
	}
	var err error
	if g.audit, err = audit.Open(cfg.Audit, cfg.Log, cfg.Now); err != nil {
		return nil, err
	}
	g.running.Go(func() { g.audit.Run(g.closed) })
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

// Grant is what a caller may do to the groups that begin with a prefix.
type Grant struct {
	Prefix string `json:"prefix" doc:"of the names of groups; empty: all groups, and nodes"`
	Verbs  []Verb `json:"verbs"`
}

// Grants returns everything that the policy gives id.
func (g *Gate) Grants(id Identity) []Grant {
	if id.Anonymous() && !g.cfg.credentials() {
		return []Grant{{Verbs: Verbs()}}
	}
	all, p := []Grant{}, g.policy.Load()
	if id.Name == "" || p == nil || p.refused[id.Name] {
		return all
	}
	for _, role := range p.rolesOf(id.Name) {
		for _, a := range p.roles[role] {
			all = append(all, Grant{*a.Prefix, a.Verbs})
		}
	}
	return all
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
func (g *Gate) table(id Identity) *limit.Callers {
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
	g.table(id).With(id.key, now, func(c *limit.Caller) {
		if renewal {
			what, wait = "renewals", c.Renewals.Take(now)
		} else {
			wait = c.Ordinary.Take(now)
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
	result := audit.Denied
	var p *httpapi.Problem
	switch {
	case !errors.As(err, &p):
	case p.Status == http.StatusUnauthorized:
		g.unidentified.Add(1)
	case p.Status == http.StatusTooManyRequests:
		result = audit.Limited
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
	g.tell(id, audit.Entry{Who: id.Name, How: string(id.How), Remote: host(r.RemoteAddr), What: what, Group: group, Result: result, Reason: err.Error()})
}

// tell audits a denial or failure, up to a rate for each caller, so that nobody can push other
// entries out of the audit with refused requests.
func (g *Gate) tell(id Identity, e audit.Entry) {
	table, key := g.known, id.key
	if id.Name == "" {
		table, key = g.strangers, e.Remote
	}
	write, now := false, g.cfg.Now()
	table.With(key, now, func(c *limit.Caller) {
		if c.Denials.Take(now) > 0 {
			c.Silent++
			return
		}
		write, e.Omitted, c.Silent = true, c.Silent, 0
	})
	if write {
		g.audit.Write(e)
	} else {
		g.omitted.Add(1)
	}
}

// Audit writes an entry. It does not block and does not fail. Who, How, Remote and Node are
// taken from the request's context when empty. Failures of a caller count as denials, and are omitted above their rate.
func (g *Gate) Audit(ctx context.Context, e audit.Entry) {
	a, ok := ctx.Value(callerKey{}).(*admitted)
	if ok {
		e.Who, e.How = cmp.Or(e.Who, a.id.Name), cmp.Or(e.How, string(a.id.How))
		e.Remote, e.Node = cmp.Or(e.Remote, host(a.remote)), cmp.Or(e.Node, a.node)
	}
	if ok && e.Result != audit.Done && e.Result != audit.Pending {
		g.tell(a.id, e)
		return
	}
	g.audit.Write(e)
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
		Identities: g.known.Count(), Addresses: g.strangers.Count(),
		InFlight: g.ordinary.Used(), Renewals: g.renewals.Used(), Campaigns: g.campaigns.Used(), Streams: g.streams.Used(),
	}
	s.AuditWaiting, s.AuditLost, s.AuditFault = g.audit.State()
	return s
}
