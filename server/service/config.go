package service

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/store"
)

// Config configures an instance. Store is required; everything else has a default.
type Config struct {
	// Store is the engine. The caller opens and closes it.
	Store store.Store
	// Gate authenticates and authorises callers. The caller of New closes it. Default:
	// callers on loopback may do everything, and others nothing.
	Gate *auth.Gate

	// Declared: a group must be created before a node can lead it. Otherwise the first
	// campaign creates it.
	Declared bool
	// TTL of sessions that are opened without one. Default 8 s.
	TTL time.Duration
	// MaxTTL is the longest TTL: after a crash a group has no leader for so long. Default
	// 10 min.
	MaxTTL time.Duration
	// CallTimeout bounds each call to the engine. Default 2 s, which allows a retry within
	// the default TTL.
	CallTimeout time.Duration
	// MaxWait bounds ?wait=. Default 60 s.
	MaxWait time.Duration
	// Step is the time between the attempts of candidates that wait here. Default 25 ms.
	Step time.Duration
	// Drift is the largest difference in rate between the clocks of this instance and of a
	// client, as a fraction. Default 0.02.
	Drift float64
	// Heartbeat is how often a stream without events sends a comment. Default 15 s.
	Heartbeat time.Duration
	// WriteTimeout cuts off a stream whose client does not read. The client has at least half
	// of it. Default 10 s.
	WriteTimeout time.Duration
	// MaxBody is the largest body of a request in bytes. Default 128 KiB.
	MaxBody int64
	// Ledger is the base URL of the ledger whose refused writes GET /rejections shows. Empty: none.
	Ledger string
	// Console, if set, is served below /ui/. It needs no identity: it has no data.
	Console http.Handler
	// Clock measures ages and waits. Default clock.System().
	Clock clock.Clock
	// Tracer gets a span for each request and handover, and for each term that this instance
	// granted and its election. Nil: no spans.
	Tracer trace.Tracer
	// Log is the log. Default slog.Default().
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	c.TTL, c.MaxTTL = cmp.Or(c.TTL, 8*time.Second), cmp.Or(c.MaxTTL, 10*time.Minute)
	c.CallTimeout, c.MaxWait = cmp.Or(c.CallTimeout, 2*time.Second), cmp.Or(c.MaxWait, time.Minute)
	c.Step, c.Drift = cmp.Or(c.Step, 25*time.Millisecond), cmp.Or(c.Drift, 0.02)
	c.Heartbeat, c.WriteTimeout = cmp.Or(c.Heartbeat, 15*time.Second), cmp.Or(c.WriteTimeout, 10*time.Second)
	c.MaxBody, c.Log = cmp.Or(c.MaxBody, 128<<10), cmp.Or(c.Log, slog.Default())
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	return c
}

// Validate returns an error for each rule that the Config, with its defaults, breaks.
func (c Config) Validate() error {
	if c.Store == nil {
		return errors.New("service: Config.Store is nil")
	}
	c = c.withDefaults()
	limits := c.Store.Caps()
	var errs []error
	rule := func(holds bool, format string, args ...any) {
		if !holds {
			errs = append(errs, fmt.Errorf("service: "+format, args...))
		}
	}
	rule(c.MaxTTL >= limits.MinTTL && c.MaxTTL <= limits.MaxTTL, "MaxTTL = %v: this store grants from %v to %v", c.MaxTTL, limits.MinTTL, limits.MaxTTL)
	rule(c.TTL >= limits.MinTTL && c.TTL <= c.MaxTTL, "TTL = %v must be at least %v, the shortest that this store grants, and at most MaxTTL = %v", c.TTL, limits.MinTTL, c.MaxTTL)
	rule(c.CallTimeout > 0 && c.CallTimeout <= 30*time.Second, "CallTimeout = %v must be more than 0 and at most 30s", c.CallTimeout)
	rule(c.MaxWait > 0 && c.MaxWait <= 10*time.Minute, "MaxWait = %v must be more than 0 and at most 10m", c.MaxWait)
	rule(c.Step > 0 && c.Step <= time.Second, "Step = %v must be more than 0 and at most 1s", c.Step)
	rule(c.Drift > 0 && c.Drift < 0.5, "Drift = %v must be more than 0 and below 0.5", c.Drift)
	rule(c.Heartbeat > 0 && c.Heartbeat <= 5*time.Minute, "Heartbeat = %v must be more than 0 and at most 5m", c.Heartbeat)
	rule(c.WriteTimeout > 0, "WriteTimeout = %v must be positive", c.WriteTimeout)
	ledger, err := url.Parse(c.Ledger)
	rule(c.Ledger == "" || err == nil && (ledger.Scheme == "http" || ledger.Scheme == "https") && ledger.Host != "" && ledger.User == nil && ledger.RawQuery == "",
		"Ledger is not the URL of a ledger, such as http://127.0.0.1:7420")
	rule(c.MaxBody >= 1024, "MaxBody = %d must be at least 1024", c.MaxBody)
	return errors.Join(errs...)
}
