package storeapi

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// Right is what a caller must be allowed to do with groups.
type Right string

// The rights.
const (
	Campaign Right = "campaign"
	Observe  Right = "observe"
	StepDown Right = "step-down"
	Admin    Right = "admin"
)

// Config is what the service supplies. Store, Own and May are required.
type Config struct {
	Store lease.Store
	// Session returns a session, which may have died since; ErrSessionDead is definite.
	// Default: that of the store. A service that remembers sessions saves a read.
	Session func(context.Context, lease.SessionID) (lease.Session, error)
	// Own returns nil if the caller may speak as the candidate.
	Own func(r *http.Request, candidate string) error
	// May returns nil if the caller has the right to every group in the scope. An
	// empty scope asks whether it has the right to any group at all.
	//
	// An error of Own and May that is a *httpapi.Problem is the answer; any other
	// is a 403.
	May func(r *http.Request, right Right, scope lease.Scope) error
	// Policy binds whoever begins to lead. Nil binds nobody.
	Policy Policy
	// Heard is told, if set, of every call that changes something or was denied.
	Heard func(r *http.Request, h Heard)
	// Suspected is told, if set, of a report that stopped all grants.
	Suspected func(group string, seen fence.Token)
	// WriteTimeout is how long a reader of a stream may not take anything. Default 10 s.
	WriteTimeout time.Duration
	// Stopping, when closed, ends the streams, so that their callers go to another
	// instance before this one is gone. Optional.
	Stopping <-chan struct{}
}

// Policy is what a deployment lays down besides rights: for its groups, and for nodes. An
// error that is a *httpapi.Problem is the answer; any other is the engine's, which failed
// before anything was changed. The caller is in the context of the request.
type Policy interface {
	// Opens returns nil if the candidate may open such a session.
	Opens(ctx context.Context, candidate string, ttl time.Duration, o lease.OpenOptions) error
	// Opened is told of a session that was opened.
	Opened(s lease.Session)
	// Begins returns nil if the session, of which id, candidate id and TTL are known, may
	// begin to lead the groups.
	Begins(ctx context.Context, s lease.Session, groups ...string) error
}

// Anyone is an Own that believes every caller, for a service on loopback without
// credentials.
func Anyone(*http.Request, string) error { return nil }

// Anything is a May that allows everything, for such a service.
func Anything(*http.Request, Right, lease.Scope) error { return nil }

// Heard is what a caller wanted, for the audit log.
type Heard struct {
	Method    wire.Method
	Candidate string // that it spoke for
	Session   lease.SessionID
	Groups    lease.Scope // that it was about
	Token     uint64      // that it was about, or that was granted; of the first group
	Reason    string
	Err       error // nil: it was done
}

// Route is one row for the service's table. Each is a POST.
type Route struct {
	Method wire.Method
	Path   string // without /v1
	// Right that a caller needs for any group at all to get something out of it.
	// The handler checks for which groups, which the body says.
	Right Right
	// Or is another that does as well, for part of what the route does.
	Or Right
	// Renewal marks what keeps leaders leading and what ends terms in order; Campaign what
	// may begin terms. The service prefers the former under load.
	Renewal, Campaign bool
	// Stream marks the watch, which does not end by itself.
	Stream bool
	Handle http.HandlerFunc
}

// API serves a Store.
type API struct {
	cfg Config

	mu         sync.Mutex
	deployment string
}

// New returns the API.
func New(cfg Config) (*API, error) {
	switch {
	case cfg.Store == nil:
		return nil, &lease.ArgumentError{Field: "store", Rule: "is needed"}
	case cfg.Own == nil || cfg.May == nil:
		return nil, &lease.ArgumentError{Field: "own and may", Rule: "are needed: Anyone and Anything where everybody is trusted"}
	}
	if cfg.WriteTimeout <= 0 {
		cfg.WriteTimeout = defaultWrite
	}
	if cfg.Session == nil {
		cfg.Session = cfg.Store.Session
	}
	return &API{cfg: cfg}, nil
}

const (
	// maxCall bounds a call, whatever its caller says.
	maxCall = 30 * time.Second
	// defaultCall bounds one that does not say.
	defaultCall = 10 * time.Second
	// maxBody is enough for the largest scope, the most metadata and the largest
	// batch of any engine.
	maxBody = 256 << 10
)

// Routes are all routes.
func (a *API) Routes() []Route {
	row := func(m wire.Method, right Right, h http.HandlerFunc) Route {
		r := Route{Method: m, Path: m.Path(), Right: right, Stream: m == wire.Watch, Handle: h}
		switch m {
		case wire.KeepAlive, wire.Close, wire.Release, wire.Answer:
			r.Renewal = true
		case wire.Open, wire.Acquire:
			r.Campaign = true
		default:
		}
		return r
	}
	routes := []Route{
		row(wire.Caps, Observe, serve(a, wire.Caps, a.caps)),
		row(wire.Open, Campaign, serve(a, wire.Open, a.open)),
		row(wire.FindSession, Observe, serve(a, wire.FindSession, a.session)),
		row(wire.KeepAlive, Campaign, serve(a, wire.KeepAlive, a.keepAlive)),
		row(wire.Close, Campaign, serve(a, wire.Close, a.close)),
		row(wire.Acquire, Campaign, serve(a, wire.Acquire, a.acquire)),
		row(wire.Release, Campaign, serve(a, wire.Release, a.release)),
		row(wire.Ask, StepDown, serve(a, wire.Ask, a.ask)),
		row(wire.Answer, Campaign, serve(a, wire.Answer, a.answer)),
		row(wire.Answered, StepDown, serve(a, wire.Answered, a.answered)),
		row(wire.Read, Observe, serve(a, wire.Read, a.read)),
		row(wire.Watch, Observe, a.watch),
		row(wire.Groups, Observe, serve(a, wire.Groups, a.groups)),
		row(wire.Sessions, Observe, serve(a, wire.Sessions, a.sessions)),
		row(wire.History, Observe, serve(a, wire.History, a.history)),
		row(wire.Meta, Observe, serve(a, wire.Meta, a.meta)),
		row(wire.RaiseEpoch, Admin, serve(a, wire.RaiseEpoch, a.raiseEpoch)),
		row(wire.Suspect, Campaign, serve(a, wire.Suspect, a.suspect)),
		row(wire.Attributes, Observe, serve(a, wire.Attributes, a.attributes)),
		row(wire.SetAttributes, Admin, serve(a, wire.SetAttributes, a.setAttributes)),
	}
	routes[len(routes)-1].Or = Campaign // for marks of what its candidates did
	return routes
}

// standsFor returns the deployment, which never changes.
func (a *API) standsFor(ctx context.Context) (string, error) {
	a.mu.Lock()
	known := a.deployment
	a.mu.Unlock()
	if known != "" {
		return known, nil
	}
	m, err := a.cfg.Store.Meta(ctx)
	if err != nil {
		return "", err
	}
	a.mu.Lock()
	a.deployment = m.Deployment
	a.mu.Unlock()
	return m.Deployment, nil
}
