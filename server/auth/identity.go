package auth

import (
	"context"
	"net/http"
	"time"

	"github.com/tenurehq/tenure/server/auth/secret"
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
	// Campaign: campaign, lead, renew and resign, under the caller's own name.
	Campaign Verb = "campaign"
	// StepDown: ask a leader to step down, or force it.
	StepDown Verb = "step-down"
	// Admin: create, change and delete groups and their policies.
	Admin Verb = "admin"
)

// Verbs returns the verbs that a policy can give.
func Verbs() []Verb { return []Verb{Observe, Campaign, StepDown, Admin} }

const (
	// AllGroups stands for every present and future group: a policy allows it with the empty
	// prefix only.
	AllGroups = ""
	// SomeGroup stands for at least one prefix. The handler must then check [Gate.May] for
	// each group that it uses or shows.
	SomeGroup = "*"
)

// How an identity was established.
type How string

// The ways.
const (
	ByCert       How = "cert"
	ByJWT        How = "jwt"
	ByCredential How = "credential"
	Loopback     How = "loopback" // no credentials are configured
	Insecure     How = "insecure" // as Loopback, but reachable from other machines
)

// Identity is a caller.
type Identity struct {
	// Name is the node id; empty if no credentials are configured.
	Name string
	How  How
	// Roles that the policy gave at the time of the request.
	Roles []string
	// Until is when the credential expires; zero: never.
	Until time.Time

	key   string       // for the limits
	valid func() error // whether the credential is still valid; nil: always
}

// Anonymous reports whether the caller may use any name.
func (id Identity) Anonymous() bool { return id.How == Loopback || id.How == Insecure }

// Is returns a problem (403) unless the caller may act as the node.
func (id Identity) Is(node string) error {
	if id.Anonymous() || node != "" && node == id.Name {
		return nil
	}
	return httpapi.Refuse(http.StatusForbidden, "not_your_node", "the credentials are those of %q, but node_id is %q: a node may act as itself only; use the node id %q", id.Name, secret.Name(node), id.Name)
}

// String is for logs.
func (id Identity) String() string {
	if id.Name == "" {
		return string(id.How)
	}
	return id.Name + " (" + string(id.How) + ")"
}

type callerKey struct{}

// admitted is a caller that [Gate.Guard] has admitted.
type admitted struct {
	id     Identity
	remote string
	node   string // that an anonymous caller acts as, for the audit
	yield  func() // gives the slot of a campaign back; nil: it has none
}

// Is returns a problem (403) unless the caller of a request may act as the node. The audit of
// an anonymous caller names the node.
func Is(ctx context.Context, node string) error {
	a, ok := ctx.Value(callerKey{}).(*admitted)
	if !ok {
		return Identity{}.Is(node)
	}
	if a.id.Anonymous() {
		a.node = node
	}
	return a.id.Is(node)
}

// Yield gives the slot of a campaign back before the campaign waits: slots are for campaigns
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
