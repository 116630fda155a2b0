package load

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/reference/api"
)

// Config says what to call, how often and for how long. Except for URLs, the zero value of a
// field is its default.
type Config struct {
	// URLs of the nodes, http only.
	URLs []string
	// Rate is the number of calls per second; 0: each connection calls again as soon as it
	// was answered.
	Rate float64
	// Connections is the number of concurrent calls. Default 256.
	Connections int
	// For is how long calls are started. Default 30s, at most 24h.
	For time.Duration
	// Count is the largest number of calls; 0: no limit but For.
	Count int64
	// N is the number of numbers that each call asks for. Default 1.
	N int
	// Timeout of one try; after it the outcome is unknown. Default 2s.
	Timeout time.Duration
	// Patience is how long a call looks for a leader. Default 30s.
	Patience time.Duration
	// Bare says that the function Bare answers, with the same numbers every time.
	Bare bool
	// Calls, if given, records every call, answered or not. Name distinguishes the connections
	// of this run from those of others.
	Calls *history.Writer
	Name  string
	// Progress, if given, is called once a second.
	Progress func(Progress)
}

func (c Config) withDefaults() Config {
	c.Connections, c.N = cmp.Or(c.Connections, 256), cmp.Or(c.N, 1)
	c.For, c.Timeout, c.Patience = cmp.Or(c.For, 30*time.Second), cmp.Or(c.Timeout, 2*time.Second), cmp.Or(c.Patience, 30*time.Second)
	return c
}

const (
	maxConnections = 10_000
	maxRate        = 1_000_000
	maxFor         = 24 * time.Hour
)

// Validate returns what is wrong.
func (c Config) Validate() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if len(c.URLs) == 0 {
		bad("no node to call; give a fleet file or at least one URL")
	}
	for _, u := range c.URLs {
		if _, err := hostOf(u); err != nil {
			all = append(all, err)
		}
	}
	if c.Rate < 0 || c.Rate > maxRate {
		bad("rate: %v is not between 1 and %d calls per second, or max", c.Rate, maxRate)
	}
	if c.Connections < 0 || c.Connections > maxConnections {
		bad("connections: %d is not between 1 and %d", c.Connections, maxConnections)
	}
	if c.For < 0 || c.For > maxFor {
		bad("for: %v; use more than 0 and at most %v", c.For, maxFor)
	}
	if c.Count < 0 {
		bad("count: %d is negative", c.Count)
	}
	if c.N < 0 || c.N > api.MaxNext {
		bad("n: %d is not between 1 and %d", c.N, api.MaxNext)
	}
	if c.Timeout < 0 || c.Patience < 0 {
		bad("timeout and patience: neither can be negative")
	}
	return errors.Join(all...)
}
