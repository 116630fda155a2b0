package consul_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/consul"
	"github.com/tenurehq/tenure/store/storetest"
)

// DNS shows the leader of a group while its term lasts.
func TestPublish(t *testing.T) {
	t.Parallel()
	server := servertest.Consul(t)
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.DNS())
	}}
	shows := func(want int) error {
		_, found, err := resolver.LookupSRV(t.Context(), "", "", "billing.service.consul.")
		var missing *net.DNSError
		if err != nil && !(errors.As(err, &missing) && missing.IsNotFound) {
			return err
		}
		if want == 0 && len(found) == 0 || len(found) == 1 && int(found[0].Port) == want {
			return nil
		}
		return fmt.Errorf("DNS shows %v, want port %d", found, want)
	}
	if err := shows(0); err != nil {
		t.Fatal(err)
	}
	for port := 81; port <= 82; port++ {
		s := open(t, at(server))
		term := storetest.Lead(t, storetest.Elector(t, storetest.Node(t, s, fmt.Sprint("n", port), lease.Timing{TTL: 5 * time.Second}, "billing"), "billing"))
		done := make(chan error, 1)
		go func() {
			done <- s.Publish(term, consul.Service{Address: "127.0.0.1", Port: port, Tags: []string{"leader"}})
		}()
		storetest.Eventually(t, func() error { return shows(port) })
		if found, err := resolver.LookupHost(t.Context(), "leader.billing.service.consul."); err != nil || len(found) != 1 || found[0] != "127.0.0.1" {
			t.Errorf("the address is %v, %v", found, err)
		}
		// An agent that has lost the service gets it again.
		api(t, server, http.MethodPut, fmt.Sprintf("agent/service/deregister/billing-%d", term.Token()), nil)
		storetest.Eventually(t, func() error { return shows(port) })
		if err := s.Publish(term, consul.Service{Name: "no/label"}); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("a name that is no label: %v", err)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		storetest.Eventually(t, func() error { return shows(0) })
	}
}

// With health checks a candidate whose check becomes critical loses its session long before the
// TTL, and opens none until the check passes.
func TestChecks(t *testing.T) {
	t.Parallel()
	server := servertest.Consul(t)
	check := func(state string) {
		t.Helper()
		api(t, server, http.MethodPut, "agent/check/"+state+"/alive", nil)
	}
	api(t, server, http.MethodPut, "agent/check/register", []byte(`{"Name":"alive","TTL":"1h","Status":"passing"}`))
	cfg := at(server)
	cfg.Checks = []string{"serfHealth", "alive"}
	s, other := open(t, cfg), open(t, at(server))
	scope := store.OpenOptions{Scope: store.Scope{"g"}}
	var session store.Session
	// The agent tells its servers of the check a moment later.
	storetest.Eventually(t, func() (err error) {
		session, err = s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Hour, scope)
		return err
	})
	if _, err := s.Acquire(t.Context(), session.ID, store.Record{Group: "g"}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := s.KeepAlive(t.Context(), session.ID); err != nil {
			t.Fatal(err)
		}
	}
	check("fail")
	storetest.Eventually(t, func() error {
		if v, err := other.Read(t.Context(), "g"); err != nil || v.State != tenure.Vacant {
			return fmt.Errorf("the group is %v, %w", v.State, err)
		}
		return nil
	})
	if _, err := s.KeepAlive(t.Context(), session.ID); !errors.Is(err, store.ErrSessionDead) {
		t.Errorf("a keep-alive after the check failed: %v", err)
	}
	if _, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Hour, scope); err == nil {
		t.Error("a session was opened while the check is critical")
	}
	check("pass")
	storetest.Eventually(t, func() error {
		again, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Hour, scope)
		if err == nil {
			_, err = s.KeepAlive(t.Context(), again.ID)
		}
		return err
	})
}
