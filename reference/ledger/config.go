package ledger

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// Config says how a ledger is kept. The zero value of a field is its default.
type Config struct {
	// DB is the path of a SQLite file, created if missing, or a postgres:// URL.
	DB string

	// Unfenced accepts every valid write, whatever its token, and still lists what would have
	// been refused. It is for experiments; no flag of the program fleet sets it.
	Unfenced bool

	// ActingWindow is how far back leaders_acting looks. Default 2s.
	ActingWindow time.Duration
	// Rejections is how many refused writes are kept. Default 1000.
	Rejections int
	// History is how many ticks and firings of a resource, and allocations of a
	// sequence, are kept at least. A tick that is gone no longer keeps its key from being used
	// again; nor does a firing that was delivered and is gone. Firings that are pending
	// are all kept. Default 1,000,000.
	History int
	// Resources is how many resources there may be. Default 10,000.
	Resources int
	// Shared is how many shared records there may be. Default 100,000.
	Shared int

	// Group is how many batches share a commit at most; 1 commits each alone.
	// Default 1024.
	Group int
	// Queue is how many batches may wait for their commit. Default 4096.
	Queue int
	// QueueBytes is how large they may be together. Default 64 MiB.
	QueueBytes int

	// Timeout bounds one transaction on PostgreSQL, and every read. Default 10s.
	Timeout time.Duration

	// Logger, by default slog.Default.
	Logger *slog.Logger
	// Clock measures the acting window. Default the system's.
	Clock clock.Clock
	// Now dates what is written, for people. Default time.Now.
	Now func() time.Time
}

func (c Config) withDefaults() Config {
	number := func(n *int, def int) {
		if *n == 0 {
			*n = def
		}
	}
	number(&c.Rejections, 1000)
	number(&c.History, 1_000_000)
	number(&c.Resources, 10_000)
	number(&c.Shared, 100_000)
	number(&c.Group, 1024)
	number(&c.Queue, 4096)
	number(&c.QueueBytes, 64<<20)
	if c.ActingWindow == 0 {
		c.ActingWindow = 2 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// ConfigError: this configuration cannot be run, whatever the database says.
type ConfigError struct {
	Field string
	Rule  string
}

func (e *ConfigError) Error() string { return e.Field + ": " + e.Rule }

// Validate says which rules are broken.
func (c Config) Validate() error {
	var all []error
	bad := func(field, format string, args ...any) {
		all = append(all, &ConfigError{Field: field, Rule: fmt.Sprintf(format, args...)})
	}
	switch {
	case c.DB == "":
		bad("db", "the path of a SQLite file or a postgres:// URL must be given")
	case strings.Contains(c.DB, ":memory:"):
		bad("db", "a ledger in memory would forget its marks: give the path of a file")
	case !c.postgres() && strings.Contains(c.DB, "://"):
		bad("db", "%s is no database that is known: the path of a SQLite file or a postgres:// URL", scheme(c.DB))
	case strings.IndexByte(c.DB, 0) >= 0:
		bad("db", "a path has no zero bytes")
	}
	for field, d := range map[string]time.Duration{"acting-window": c.ActingWindow, "timeout": c.Timeout} {
		if d < 0 {
			bad(field, "%v is negative", d)
		}
	}
	for field, n := range map[string]int{"rejections": c.Rejections, "history": c.History, "resources": c.Resources, "shared": c.Shared, "group": c.Group, "queue": c.Queue, "queue-bytes": c.QueueBytes} {
		if n < 0 {
			bad(field, "%d is negative", n)
		}
	}
	return errors.Join(all...)
}

func (c Config) postgres() bool {
	return strings.HasPrefix(c.DB, "postgres://") || strings.HasPrefix(c.DB, "postgresql://")
}

func scheme(url string) string {
	s, _, _ := strings.Cut(url, "://")
	return s + "://"
}
