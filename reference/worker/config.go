package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/httpapi"
)

// Config says how a worker is run. The zero value of a field is its default.
type Config struct {
	// ID names the worker.
	ID string
	// Listen is host:port; port 0 is a free one.
	Listen string
	// Dir is an existing directory of its own, for its mark and its orders.
	Dir string
	// Hosts are names by which callers reach the worker, besides localhost, the host of
	// Listen and every IP address. Requests to other names are refused.
	Hosts []string

	// Running is how many orders run at once, standing ones not counted. Default 8.
	Running int
	// Waiting is how many may wait to be run; further ones are turned away. Default
	// 10,000.
	Waiting int
	// Standing is how many standing orders there may be. Default 100.
	Standing int
	// Remember is how many orders that are done are remembered at least. Default
	// 200,000.
	Remember int
	// MaxBody is the largest body in bytes. Default 8 MiB.
	MaxBody int64
	// HTTP are the limits of the server.
	HTTP httpapi.Limits
	// Log, by default slog.Default.
	Log *slog.Logger
}

// ConfigError: this configuration cannot be run.
type ConfigError struct {
	Field string
	Rule  string
}

func (e *ConfigError) Error() string { return e.Field + ": " + e.Rule }

func (c Config) withDefaults() Config {
	number := func(n *int, def int) {
		if *n == 0 {
			*n = def
		}
	}
	number(&c.Running, 8)
	number(&c.Waiting, 10_000)
	number(&c.Standing, maxStanding)
	number(&c.Remember, 200_000)
	if c.MaxBody == 0 {
		c.MaxBody = 8 << 20
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

// Validate says which rules are broken.
func (c Config) Validate() error {
	var all []error
	bad := func(field, format string, args ...any) {
		all = append(all, &ConfigError{Field: field, Rule: fmt.Sprintf(format, args...)})
	}
	if !lease.ValidName(c.ID) {
		bad("id", "%q: 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", c.ID)
	}
	if c.Dir == "" {
		bad("dir", "a directory for the worker's mark and orders must be given")
	}
	for field, n := range map[string]int{"running": c.Running, "waiting": c.Waiting, "standing": c.Standing, "remember": c.Remember, "max-body": int(c.MaxBody)} {
		if n < 0 {
			bad(field, "%d is negative", n)
		}
	}
	return errors.Join(all...)
}

// callTimeout bounds what the worker does to its own disk.
const callTimeout = 10 * time.Second
