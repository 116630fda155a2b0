package consul

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"
)

// binding is the Consul session of the health checks in Config.Checks. Beats are locked by it,
// so Consul deletes them when a check becomes critical.
type binding struct {
	mu      sync.Mutex
	id      string // "": none
	renewed time.Time
}

const (
	// bindingTTL is the longest that Consul allows. It ends the Consul sessions of processes that
	// have died.
	bindingTTL   = "24h"
	bindingRenew = time.Hour
)

// hold returns the id of the Consul session, and renews it from time to time. If there is none
// and needed is set, hold creates one.
func (b *binding) hold(ctx context.Context, d *Driver, needed bool) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.id == "" && needed:
		var made struct{ ID string }
		_, err := d.each(ctx, request{
			what: "create a session with the health checks " + strings.Join(d.cfg.Checks, ", "), method: http.MethodPut, path: "session/create", into: &made,
			body: map[string]any{"Name": "tenure", "NodeChecks": d.cfg.Checks, "Behavior": "delete", "LockDelay": "0s", "TTL": bindingTTL},
		})
		if err != nil {
			return "", err
		}
		b.id, b.renewed = made.ID, time.Now()
	case b.id != "" && time.Since(b.renewed) > bindingRenew:
		b.renewed = time.Now()
		// Ignore errors: there are many hours left to retry.
		_, _ = d.each(ctx, request{what: "renew the session of the health checks", method: http.MethodPut, path: "session/renew/" + b.id})
	}
	return b.id, nil
}

// drop forgets the Consul session, which may have ended. The next hold creates a new one.
func (b *binding) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.id = ""
}
