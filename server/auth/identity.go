package auth

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tenurehq/tenure/server/httpapi"
)

// Verb is what a caller wants to do to a group.
type Verb string

// The verbs. None implies another.
const (
	// Open: needs no identity (health, the API's description).
	Open Verb = "open"
	// Observe: read and watch leaders, terms and candidates.
	Observe Verb = "observe"
	// Campaign: stand, lead, renew and resign, under one's own name.
	Campaign Verb = "campaign"
	// StepDown: ask or force another to give up leadership.
	StepDown Verb = "step-down"
	// Admin: create, change and delete groups and their policies.
	Admin Verb = "admin"
)

// Verbs returns those that a policy can give, in the order of the documents.
func Verbs() []Verb { return []Verb{Observe, Campaign, StepDown, Admin} }

const (
	// AllGroups asks for a verb on every group there is or will be: a policy allows it
	// by the empty prefix only.
	AllGroups = ""
	// SomeGroup asks for a verb on at least one prefix. Whoever asks so must ask
	// [Gate.May] for each group that it then touches or shows.
	SomeGroup = "*"
)

// How an identity was established.
type How string

// The ways.
const (
	ByCert   How = "cert"
	ByJWT    How = "jwt"
	ByToken  How = "token"
	Loopback How = "loopback" // nobody is known: no credentials are configured
	Insecure How = "insecure" // as Loopback, but reachable from elsewhere
)

// Identity is who is asking.
type Identity struct {
	// Name is the node id; empty if names are taken as given.
	Name string
	How  How
	// Roles that the policy gave at the time of the request.
	Roles []string
	// Until is when the credential ends; zero: never.
	Until time.Time

	key   string       // what the limits are counted by
	valid func() error // whether the credential still holds; nil: always
}

// Anonymous reports whether names are taken as given.
func (id Identity) Anonymous() bool { return id.How == Loopback || id.How == Insecure }

// Is returns a problem (403) unless the caller may speak for node, which is what a
// request's node_id says.
func (id Identity) Is(node string) error {
	if id.Anonymous() || node != "" && node == id.Name {
		return nil
	}
	return &httpapi.Problem{
		Status: http.StatusForbidden, Code: "not_your_node",
		Detail: fmt.Sprintf("the credentials are those of %q, and node_id says %q: a node speaks for itself only", id.Name, glimpseUnlessName(node)),
	}
}

// String is for logs.
func (id Identity) String() string {
	if id.Name == "" {
		return string(id.How)
	}
	return id.Name + " (" + string(id.How) + ")"
}

type callerKey struct{}

// admitted is who [Gate.Guard] let pass, and from where.
type admitted struct {
	id     Identity
	remote string
	yield  func() // gives the place of a campaign back; nil: it has none
}

// Yield gives the place of a campaign back before it begins to wait: places are for those
// that use the engine. Calling it twice, or for another request, does nothing.
func Yield(ctx context.Context) {
	if a, ok := ctx.Value(callerKey{}).(*admitted); ok && a.yield != nil {
		a.yield()
	}
}

// From returns the identity that [Gate.Guard] admitted.
func From(ctx context.Context) Identity {
	if a, ok := ctx.Value(callerKey{}).(*admitted); ok {
		return a.id
	}
	return Identity{}
}
