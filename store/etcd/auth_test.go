package etcd_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
)

// guarded is an etcd that asks for passwords.
type guarded struct {
	t         *testing.T
	endpoints []string
	root      *clientv3.Client
}

const prefix = "/guarded"

func newGuarded(t *testing.T) *guarded {
	g := &guarded{t: t, endpoints: enginetest.Cluster(t, 1).Endpoints()}
	open, err := clientv3.New(clientv3.Config{Endpoints: g.endpoints, DialTimeout: 10 * time.Second})
	g.must(err)
	defer func() { _ = open.Close() }()
	g.root = open
	g.user("root", "root")
	_, err = open.RoleAdd(t.Context(), "root")
	g.must(err)
	g.grant("root", "root")
	for role, kind := range map[string]clientv3.PermissionType{
		"writes": clientv3.PermissionType(clientv3.PermReadWrite), "reads": clientv3.PermissionType(clientv3.PermRead),
	} {
		_, err = open.RoleAdd(t.Context(), role)
		g.must(err)
		_, err = open.RoleGrantPermission(t.Context(), role, prefix+"/", clientv3.GetPrefixRangeEnd(prefix+"/"), kind)
		g.must(err)
	}
	_, err = open.AuthEnable(t.Context())
	g.must(err)
	g.root, err = clientv3.New(clientv3.Config{Endpoints: g.endpoints, DialTimeout: 10 * time.Second, Username: "root", Password: "root"})
	g.must(err)
	t.Cleanup(func() { _ = g.root.Close() })
	return g
}

func (g *guarded) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

func (g *guarded) user(name, password string, roles ...string) {
	g.t.Helper()
	_, err := g.root.UserAdd(g.t.Context(), name, password)
	g.must(err)
	for _, r := range roles {
		g.grant(name, r)
	}
}

func (g *guarded) grant(user, role string) {
	g.t.Helper()
	_, err := g.root.UserGrantRole(g.t.Context(), user, role)
	g.must(err)
}

func (g *guarded) revoke(user, role string) {
	g.t.Helper()
	_, err := g.root.UserRevokeRole(g.t.Context(), user, role)
	g.must(err)
}

func (g *guarded) open(user, password string) (*etcd.Store, error) {
	ctx, cancel := context.WithTimeout(g.t.Context(), 10*time.Second)
	defer cancel()
	s, err := etcd.Open(ctx, etcd.Config{Endpoints: g.endpoints, Prefix: prefix, MinTTL: time.Second, Username: user, Password: password})
	if err == nil {
		g.t.Cleanup(s.Close)
	}
	return s, err
}

// elector opens the store as a user who may, and stands for the group g.
func (g *guarded) elector(user string) *lease.Elector {
	g.t.Helper()
	s, err := g.open(user, user)
	g.must(err)
	n, err := lease.New(s, lease.Config{
		Candidate: tenure.Candidate{ID: user}, Scope: store.Scope{"g"}, Timing: lease.Timing{TTL: 6 * time.Second}, Log: slog.New(slog.DiscardHandler),
	})
	g.must(err)
	g.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = n.Close(ctx)
	})
	e, err := n.Elector("g")
	g.must(err)
	return e
}

// patience is far longer than any of this takes.
const patience = 30 * time.Second

func returns(t *testing.T, what string, want error, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := f(ctx); !errors.Is(err, want) || !store.Permanent(err) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func campaign(e *lease.Elector) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := e.Campaign(ctx)
		return err
	}
}

// A wrong password and missing permissions end a campaign with an error that says so.
// So does a permission that is revoked: at once for who waits, and after its term for
// who leads.
func TestPermanentErrors(t *testing.T) {
	g := newGuarded(t)
	g.user("leads", "leads", "writes")
	g.user("waits", "waits", "writes")
	g.user("reads", "reads", "reads")
	g.user("nobody", "nobody")

	leads := g.elector("leads")
	for what, c := range map[string]struct {
		user, password string
		want           error
	}{
		"wrong password": {"leads", "wrong", store.ErrUnauthenticated},
		"unknown user":   {"ghost", "ghost", store.ErrUnauthenticated},
		"no user":        {"", "", store.ErrUnauthenticated},
		"no role":        {"nobody", "nobody", store.ErrDenied},
	} {
		start := time.Now()
		if _, err := g.open(c.user, c.password); !errors.Is(err, c.want) || !store.Permanent(err) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%s: noticed after %v", what, took)
		}
	}
	returns(t, "a role that may only read", store.ErrDenied, campaign(g.elector("reads")))

	began := make(chan struct{}, 1)
	led := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	go func() {
		led <- tenure.Lead(ctx, leads, func(ctx context.Context, _ *tenure.Term) error {
			select {
			case began <- struct{}{}:
			default:
			}
			<-ctx.Done()
			return ctx.Err()
		}, tenure.WithLog(slog.New(slog.DiscardHandler)))
	}()
	select {
	case <-began:
	case err := <-led:
		t.Fatal(err)
	}
	waits := g.elector("waits")
	waited := make(chan error, 1)
	go func() { waited <- campaign(waits)(ctx) }()
	stands(t, g.root, 2)

	g.revoke("waits", "writes")
	returns(t, "revoked while it waits", store.ErrDenied, func(ctx context.Context) error { return receive(ctx, waited) })
	g.revoke("leads", "writes")
	returns(t, "revoked while it leads", store.ErrDenied, func(ctx context.Context) error { return receive(ctx, led) })

	// What is granted again works again.
	g.grant("waits", "writes")
	term, err := waits.Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := term.Resign(ctx); err != nil {
		t.Error(err)
	}
}

func receive(ctx context.Context, from <-chan error) error {
	select {
	case err := <-from:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stands waits until there are that many sessions.
func stands(t *testing.T, root *clientv3.Client, n int64) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		r, err := root.Get(t.Context(), prefix+"/beat/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil && r.Count == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v sessions, %v", r, err)
		}
	}
}

// beyond asks for a TTL that no store grants.
type beyond struct{ store.Store }

func (b beyond) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	return b.Store.Open(ctx, c, ttl+b.Caps().MaxTTL, o)
}

// A TTL that the store refuses ends the campaign.
func TestInvalidTTL(t *testing.T) {
	n, err := lease.New(beyond{open(t, enginetest.Cluster(t, 1).Endpoints())}, lease.Config{
		Candidate: tenure.Candidate{ID: "a"}, Scope: store.Scope{"g"}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close(t.Context()) }()
	e, err := n.Elector("g")
	if err != nil {
		t.Fatal(err)
	}
	returns(t, "a TTL beyond the limit", store.ErrInvalid, campaign(e))
}
