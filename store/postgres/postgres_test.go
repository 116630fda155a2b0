package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/electortest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/kv/kvtest"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/storetest"
	"github.com/tenurehq/tenure/tenuretest"
)

const patience = 30 * time.Second

// fast is for tests in which the machine is not lost: data survives a killed process.
func fast() servertest.Option {
	return servertest.Args("-c", "fsync=off", "-c", "max_connections=300")
}

func open(t *testing.T, url string) *postgres.Store {
	t.Helper()
	s, err := tryOpen(t, postgres.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryOpen(t *testing.T, cfg postgres.Config) (*postgres.Store, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := postgres.Open(ctx, cfg)
	if err == nil {
		t.Cleanup(s.Close)
	}
	return s, err
}

// at is the server's URL through another address.
func at(server *servertest.Server, addr string) string {
	u, err := url.Parse(server.URL())
	if err != nil {
		panic(err)
	}
	u.Host = addr
	return u.String()
}

func exec(t *testing.T, url string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(ctx) }()
	for _, sql := range statements {
		if _, err := c.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

func drivers(url string) func(t *testing.T) kv.Driver {
	return func(t *testing.T) kv.Driver {
		t.Helper()
		d, err := postgres.NewDriver(postgres.Config{URL: url, Schema: "driver"})
		if err == nil {
			t.Cleanup(d.Close)
			err = d.Migrate(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// PostgreSQL keeps the contract of a driver, whatever isolation level the database defaults to.
func TestDriver(t *testing.T) {
	server := servertest.Postgres(t, fast())
	for _, level := range []string{"read committed", "serializable"} {
		t.Run(level, func(t *testing.T) {
			exec(t, server.URL(), "ALTER DATABASE postgres SET default_transaction_isolation = '"+level+"'")
			kvtest.Run(t, kvtest.Engine{Open: drivers(server.URL()), Patience: patience})
		})
	}
}

// PostgreSQL keeps every promise of a Store.
func TestContract(t *testing.T) {
	server := servertest.Postgres(t, fast())
	storetest.Run(t, storetest.Engine{
		Open:    func(t *testing.T) store.Store { return open(t, server.URL()) },
		TTL:     2 * time.Second,
		Settle:  1500 * time.Millisecond,
		Restart: func(*testing.T) { server.Restart() },
		Rewind:  func(*testing.T) func() { return server.Backup() },
	})
}

type process struct {
	*tenuretest.Node
	elector tenure.Elector
}

func (p process) Elector() tenure.Elector { return p.elector }

// Package lease on PostgreSQL keeps the contract of an Elector.
func TestElector(t *testing.T) {
	t.Parallel()
	url := servertest.Postgres(t, fast()).URL()
	const ttl = 2 * time.Second
	electortest.Run(t, electortest.Engine{
		Start: func(t *testing.T, group, id string) electortest.Process {
			n, err := tenuretest.NewNode(open(t, url), lease.Config{
				Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{group}, Timing: lease.Timing{TTL: ttl},
				Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			return process{n, n.Elector(group)}
		},
		Lease:    ttl,
		Failover: ttl + 3*time.Second,
		Transfer: true,
		Parallel: true,
	})
}

// session opens a session that lives long enough for the test.
func session(t *testing.T, s store.Store, id string) store.Session {
	t.Helper()
	got, err := s.Open(t.Context(), tenure.Candidate{ID: id}, time.Minute, store.OpenOptions{Scope: store.Scope{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

var groups atomic.Int64

// take grants a group that nobody had before.
func take(t *testing.T, s store.Store, id store.SessionID) store.Record {
	t.Helper()
	got, err := s.Acquire(t.Context(), id, store.Record{Group: fmt.Sprintf("g%d", groups.Add(1))})
	if err != nil {
		t.Fatal(err)
	}
	return got[0]
}

// Behind a transaction pooler, which loses every LISTEN, a driver keeps its contract, and a
// candidate that waits takes over from a leader that resigns.
func TestPooler(t *testing.T) {
	t.Parallel()
	pooler := servertest.PgBouncer(t, servertest.Postgres(t, fast()))
	t.Run("driver", func(t *testing.T) {
		kvtest.Run(t, kvtest.Engine{Open: drivers(pooler.URL()), Patience: patience})
	})
	t.Run("handover", func(t *testing.T) {
		first := storetest.Lead(t, storetest.Candidate(t, open(t, pooler.URL()), "a", 10*time.Second, "g"))
		b := storetest.Candidate(t, open(t, pooler.URL()), "b", 10*time.Second, "g")
		var next *tenure.Term
		var err error
		var all sync.WaitGroup
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			next, err = b.Campaign(ctx)
		})
		if err := first.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		if all.Wait(); err != nil || next.Token() <= first.Token() {
			t.Errorf("%+v follows token %d, %v", next, first.Token(), err)
		}
	})
}
