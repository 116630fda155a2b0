package ledger

import (
	"cmp"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/reference/config"
	"github.com/tenurehq/tenure/reference/ledger/database"
)

// Config configures a ledger. A zero field has its default.
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
	// History is how many ticks and delivered firings of a resource, and allocations of a
	// sequence, are kept at least. The key of a tick, and the job and instant of a firing,
	// can be used again after it was deleted. Pending firings are all kept. Default
	// 1,000,000.
	History int
	// Resources is how many resources there may be. Default 10,000.
	Resources int
	// Shared is how many shared records there may be. Default 100,000.
	Shared int

	// Group is the most batches that share a commit; 1 commits each alone. Default 1024.
	Group int
	// Queue is how many batches may wait for their commit. Default 4096.
	Queue int
	// QueueBytes is the size that they may have together. Default 64 MiB.
	QueueBytes int

	// Timeout bounds one transaction on PostgreSQL, and every read. Default 10s.
	Timeout time.Duration

	// Logger, by default slog.Default.
	Logger *slog.Logger
	// Clock measures the acting window. Default the system's.
	Clock clock.Clock
	// Now is the wall clock. Default time.Now.
	Now func() time.Time
}

func (c Config) withDefaults() Config {
	c.Rejections, c.History = cmp.Or(c.Rejections, 1000), cmp.Or(c.History, 1_000_000)
	c.Resources, c.Shared = cmp.Or(c.Resources, 10_000), cmp.Or(c.Shared, 100_000)
	c.Group, c.Queue, c.QueueBytes = cmp.Or(c.Group, 1024), cmp.Or(c.Queue, 4096), cmp.Or(c.QueueBytes, 64<<20)
	c.ActingWindow, c.Timeout = cmp.Or(c.ActingWindow, 2*time.Second), cmp.Or(c.Timeout, 10*time.Second)
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

// ConfigError: this configuration can never work.
type ConfigError = config.Error

// Validate returns every broken rule.
func (c Config) Validate() error {
	var all config.Errors
	switch {
	case c.DB == "":
		all.Add("db", "the path of a SQLite file or a postgres:// URL must be given")
	case strings.Contains(c.DB, ":memory:"):
		all.Add("db", "a ledger in memory would lose its marks: give the path of a file")
	case !database.Postgres(c.DB) && strings.Contains(c.DB, "://"):
		all.Add("db", "%s is not supported; give the path of a SQLite file or a postgres:// URL", scheme(c.DB))
	case strings.IndexByte(c.DB, 0) >= 0:
		all.Add("db", "a path must not have zero bytes")
	}
	config.Negative(&all, map[string]time.Duration{"acting-window": c.ActingWindow, "timeout": c.Timeout})
	config.Negative(&all, map[string]int{"rejections": c.Rejections, "history": c.History, "resources": c.Resources, "shared": c.Shared, "group": c.Group, "queue": c.Queue, "queue-bytes": c.QueueBytes})
	return all.Join()
}

func scheme(url string) string {
	s, _, _ := strings.Cut(url, "://")
	return s + "://"
}

// describe names the database without its password.
func describe(db string) string {
	if !strings.Contains(db, "://") {
		return db
	}
	u, err := url.Parse(db)
	if err != nil {
		return scheme(db)
	}
	return u.Redacted()
}
