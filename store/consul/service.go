package consul

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// Service is how Consul's catalog and DNS show the leader of a group.
type Service struct {
	// Name is a DNS label: NAME.service.consul is the leader. Default: the group.
	Name string
	// Address of the leader. Default: that of the agent's node.
	Address string
	Port    int
	Tags    []string
}

const (
	// serviceTTL is how long the service of a leader that was killed or paused stays in DNS.
	serviceTTL   = 10 * time.Second
	serviceRenew = serviceTTL / 4
	// serviceForget is when Consul removes it. Consul allows no less.
	serviceForget = time.Minute
)

// Publish registers the leader as a service at the agent while the term lasts. It returns when
// the term has ended and the service is deregistered, so run it beside the work:
//
//	go store.Publish(term, consul.Service{Port: 8080})
//
// A permanent error (see store.Permanent), such as missing rights, ends it at once. It tries
// again after every other one.
//
// DNS is a hint: for a moment it may show two leaders or none.
func (s *Store) Publish(term *tenure.Term, v Service) error {
	v.Name = cmp.Or(v.Name, term.Group())
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-"
	if len(v.Name) > 63 || strings.Trim(strings.ToLower(v.Name), letters) != "" || strings.Trim(v.Name, "-") != v.Name {
		return &store.ArgumentError{Field: "service name", Value: v.Name, Rule: "must be a DNS label: letters, digits and - inside, at most 63"}
	}
	p := &published{d: s.driver, at: -1, id: fmt.Sprintf("%s-%d", v.Name, term.Token()), service: v}
	ctx := term.Context()
	call := context.WithoutCancel(ctx) // a registration that is cut short may have been made
	var err error
	for ctx.Err() == nil {
		if err = p.renew(call); store.Permanent(err) {
			return err
		}
		wait := serviceRenew
		if err != nil {
			wait = time.Second
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	if p.at < 0 {
		return err
	}
	_, err = p.agent(call, request{what: "deregister service " + p.id, path: "agent/service/deregister/" + p.id})
	return err
}

// published is a service at one agent. Another agent does not know it.
type published struct {
	d       *Driver
	at      int // address of the agent; -1: not registered
	id      string
	service Service
}

func (p *published) agent(ctx context.Context, r request) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, defaultCall)
	defer cancel()
	r.method = http.MethodPut
	return p.d.try(ctx, p.at, 1, r)
}

// renew tells the agent that the leader lives. An agent that does not know the service, or
// does not answer, is replaced.
func (p *published) renew(ctx context.Context) error {
	if p.at >= 0 {
		a, err := p.agent(ctx, request{what: "renew service " + p.id, path: "agent/check/pass/service:" + p.id})
		if err == nil && a.status == http.StatusOK {
			return nil
		}
	}
	p.at = -1
	a, err := p.d.each(ctx, request{
		what: "register service " + p.id, method: http.MethodPut, path: "agent/service/register",
		body: map[string]any{
			"ID": p.id, "Name": p.service.Name, "Address": p.service.Address, "Port": p.service.Port, "Tags": p.service.Tags,
			"Check": map[string]any{
				"TTL": serviceTTL.String(), "Status": "passing", "DeregisterCriticalServiceAfter": serviceForget.String(),
			},
		},
	})
	if err == nil {
		p.at = a.address
	}
	return err
}
