package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// Ledger is what the scheduler reads of a ledger: a *client.Client.
type Ledger interface {
	Jobs(ctx context.Context, resource string, beforeMS int64, after string, limit int) (ledgerapi.Jobs, error)
	Firings(ctx context.Context, resource string, pendingOnly bool, after string, limit int) (ledgerapi.Page[ledgerapi.Firing], error)
	Checkpoint(ctx context.Context, resource, name string) (ledgerapi.Checkpoint, error)
	Record(ctx context.Context, resource, key string) (ledgerapi.Record, error)
}

// Config configures a scheduler. A zero field has its default.
type Config struct {
	Ledger   Ledger
	Resource string

	// Tick is the time between two ticks, at least 10ms. Default 1s.
	Tick time.Duration
	// Window is how far ahead jobs are read, at least two ticks. Default 10s, or two ticks if
	// that is more.
	Window time.Duration
	// WindowJobs is the most jobs that are read ahead, fewer if they are large: 16 MiB in all.
	// Default 2000.
	WindowJobs int
	// Firings is the most that one tick fires, fewer if their payloads are large: 4 MiB in all.
	// The next tick fires the rest. Default 1000, at most 1500.
	Firings int
	// Grace is how late a firing may be without being a misfire. Default two ticks, at least 2s.
	Grace time.Duration

	// Workers are the URLs of the workers. Without any, firings stay pending.
	Workers []string
	// Outbox is how many firings are kept in memory for the workers, at least those of two
	// ticks, fewer if they are large: 64 MiB in all. The ledger keeps the others. Default
	// 10,000.
	Outbox int
	// WorkerTimeout bounds a request to a worker. Default 5s.
	WorkerTimeout time.Duration
	// Patience is how long a worker that may have a firing is asked again before another worker
	// gets it. Default 30s.
	Patience time.Duration

	// Sending, if set, is called before firings are sent to a worker, where a pause of the process
	// makes an order late.
	Sending func()

	// Clock measures the time since the ledger's last answer. Default the system's.
	Clock clock.Clock
	// Log, by default slog.Default.
	Log *slog.Logger
	// Metrics are called for each event.
	Metrics Metrics
}

// Metrics are functions that are called for each event. They may be nil, and must not block.
type Metrics struct {
	// Tick: a tick was written. late is by how much, on the ledger's clock.
	Tick func(late time.Duration)
	// Fired: a firing was recorded. late is by how much, on the ledger's clock.
	Fired func(late time.Duration)
	// Skipped: misfires of a job were skipped.
	Skipped func()
	// Dispatched: firings were sent to a worker.
	Dispatched func(worker string, firings int, took time.Duration, err error)
}

func (c Config) withDefaults() Config {
	c.Tick = cmp.Or(c.Tick, time.Second)
	c.Window, c.Grace = cmp.Or(c.Window, max(10*time.Second, 2*c.Tick)), cmp.Or(c.Grace, max(2*c.Tick, 2*time.Second))
	c.WorkerTimeout, c.Patience = cmp.Or(c.WorkerTimeout, 5*time.Second), cmp.Or(c.Patience, 30*time.Second)
	c.WindowJobs, c.Firings, c.Outbox = cmp.Or(c.WindowJobs, 2000), cmp.Or(c.Firings, 1000), cmp.Or(c.Outbox, 10_000)
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

// maxFirings leaves room in a batch for the tick, the cursor and the deliveries.
const maxFirings = ledgerapi.MaxWrites * 3 / 4

// Memory and batches are bounded in bytes too, so that large payloads are not multiplied by the
// numbers above. One job always fits.
const (
	windowBytes = 16 << 20
	tickBytes   = 4 << 20
	// pageItems keeps a page below windowBytes.
	pageItems = windowBytes / ledgerapi.MaxPayload
)

func (c *Config) validate() error {
	var all []error
	bad := func(field, format string, args ...any) {
		all = append(all, fmt.Errorf("scheduler: %s: %s", field, fmt.Sprintf(format, args...)))
	}
	if c.Ledger == nil {
		bad("ledger", "must be given")
	}
	if err := ledgerapi.Name("resource", c.Resource); err != nil {
		bad("resource", "%v", err)
	}
	if c.Tick < 10*time.Millisecond || c.Tick%time.Millisecond != 0 {
		bad("tick", "%v: whole milliseconds, at least 10", c.Tick)
	}
	if c.Window < 2*c.Tick {
		bad("window", "%v is less than two ticks of %v", c.Window, c.Tick)
	}
	for field, d := range map[string]time.Duration{"grace": c.Grace, "worker timeout": c.WorkerTimeout, "patience": c.Patience} {
		if d < 0 {
			bad(field, "%v is negative", d)
		}
	}
	if c.Firings < 1 || c.Firings > maxFirings {
		bad("firings", "%d: from 1 to %d in one tick", c.Firings, maxFirings)
	}
	if c.WindowJobs < c.Firings {
		bad("window jobs", "%d is less than the %d that one tick may fire", c.WindowJobs, c.Firings)
	}
	if c.Outbox < 2*c.Firings {
		bad("outbox", "%d is less than the %d that two ticks may fire: the next tick records what one has delivered", c.Outbox, 2*c.Firings)
	}
	seen := make(map[string]bool)
	for i, w := range c.Workers {
		u, err := url.Parse(w)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			bad("workers", "%q is not the URL of a worker, such as http://127.0.0.1:7430", w)
			continue
		}
		c.Workers[i] = strings.TrimRight(u.String(), "/")
		if seen[c.Workers[i]] {
			bad("workers", "%s is named twice", c.Workers[i])
		}
		seen[c.Workers[i]] = true
	}
	return errors.Join(all...)
}
