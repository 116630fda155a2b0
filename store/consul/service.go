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

// Service describes the leader of a group in Consul's catalog and DNS.
type Service struct {
	// Name is a DNS label: NAME.service.consul is the leader. Default: the group.
	Name string
	// Address of the leader. Default: that of the agent's node.
	Address string
	Port    int
	Tags    []string
}

const (
	// serviceTTL is how long DNS shows the service of a leader that was killed or paused.
	serviceTTL   = 10 * time.Second
	serviceRenew = serviceTTL / 4
	// serviceForget is when Consul removes the service. It is Consul's minimum.
	serviceForget = time.Minute
)

// Publish registers the leader as a service at the agent while the term lasts. It returns when
// the term has ended and the service is deregistered, so run it in a goroutine:
//
//	go store.Publish(term, consul.Service{Port: 8080})
//
// A permanent error (see store.Permanent), such as missing rights, ends it at once. It retries
// after every other error.
//
// DNS is a hint: for a moment it may show two leaders or none.
func (s *Store) Publish(term *tenure.Term, v Service) error {
	v.Name = cmp.Or(v.Name, term.Group())
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-"
	if len(v.Name) > 63 || strings.Trim(strings.ToLower(v.Name), letters) != "" || strings.Trim(v.Name, "-") != v.Name {
		return &store.ArgumentError{Field: "service name", Value: v.Name, Rule: "must be a DNS label: letters, digits and - inside, at most 63"}
	}
	id := fmt.Sprintf("%s-%d", v.Name, term.Token())
	ctx := context.WithoutCancel(term.Context()) // a registration that is cut short may have been made
	var err error
	for term.Context().Err() == nil {
		if err = s.driver.register(ctx, id, v); store.Permanent(err) {
			return err
		}
		select {
		case <-time.After(serviceRenew):
		case <-term.Context().Done():
		}
	}
	if err == nil {
		_, err = s.driver.each(ctx, request{what: "deregister service " + id, method: http.MethodPut, path: "agent/service/deregister/" + id})
	}
	return err
}

// register renews the service at the agent. If the agent does not know the service, because it was
// restarted or is another one, register registers it.
func (d *Driver) register(ctx context.Context, id string, v Service) error {
	a, err := d.each(ctx, request{what: "renew service " + id, method: http.MethodPut, path: "agent/check/pass/service:" + id})
	if err != nil || a.status == http.StatusOK {
		return err
	}
	_, err = d.each(ctx, request{what: "register service " + id, method: http.MethodPut, path: "agent/service/register", body: map[string]any{
		"ID": id, "Name": v.Name, "Address": v.Address, "Port": v.Port, "Tags": v.Tags,
		"Check": map[string]string{"TTL": serviceTTL.String(), "Status": "passing", "DeregisterCriticalServiceAfter": serviceForget.String()},
	}})
	return err
}
