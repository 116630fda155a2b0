package worker

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/tenurehq/tenure/reference/config"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
)

// Config configures a worker. A zero field has its default.
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
	// Waiting is how many orders may wait; further ones are refused. Default 10,000.
	Waiting int
	// Standing is how many standing orders there may be. Default 100.
	Standing int
	// Remember is how many finished orders are recognised at least. Default 200,000.
	Remember int
	// MaxBody is the largest body in bytes. Default 8 MiB.
	MaxBody int64
	// HTTP are the limits of the server.
	HTTP httpapi.Limits
	// Log, by default slog.Default.
	Log *slog.Logger
}

// ConfigError: this configuration can never work.
type ConfigError = config.Error

func (c Config) withDefaults() Config {
	c.Running, c.Waiting = cmp.Or(c.Running, 8), cmp.Or(c.Waiting, 10_000)
	c.Standing, c.Remember, c.MaxBody = cmp.Or(c.Standing, maxStanding), cmp.Or(c.Remember, 200_000), cmp.Or(c.MaxBody, 8<<20)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

// Validate returns every broken rule.
func (c Config) Validate() error {
	var all config.Errors
	if !store.ValidName(c.ID) {
		all.Add("id", "%q: 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", c.ID)
	}
	if c.Dir == "" {
		all.Add("dir", "a directory for the worker's mark and orders must be given")
	}
	config.Negative(&all, map[string]int{"running": c.Running, "waiting": c.Waiting, "standing": c.Standing, "remember": c.Remember, "max-body": int(c.MaxBody)})
	return all.Join()
}

// callTimeout bounds each access to the disk.
const callTimeout = 10 * time.Second
