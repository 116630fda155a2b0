package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/storetest"
)

// eventually waits until f succeeds.
func eventually(t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// rewound waits for an answer and checks whether it says that data was lost.
func rewound(t *testing.T, who string, s store.Store, want bool) store.Meta {
	t.Helper()
	var m store.Meta
	eventually(t, who+": meta", func(ctx context.Context) (err error) {
		m, err = s.Meta(ctx)
		return err
	})
	if m.Rewound != want {
		t.Errorf("%s: Rewound is %v, want %v; why: %s", who, m.Rewound, want, m.Why)
	}
	return m
}

// A client that has seen one commit more than a restored copy has notices it, also when others
// have committed far more meanwhile.
func TestRestored(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, fast())
	before := open(t, server.URL())
	a := session(t, before, "a")
	held := take(t, before, a.ID)
	restore := server.Backup()
	lost := take(t, before, a.ID)
	restore()
	var other *postgres.Store
	eventually(t, "open after the restore", func(context.Context) (err error) {
		other, err = tryOpen(t, postgres.Config{URL: server.URL()})
		return err
	})
	rewound(t, "a client that knows nothing", other, false)
	b := session(t, other, "b")
	for range 20 {
		take(t, other, b.ID)
	}
	m := rewound(t, "the client that saw more", before, true)
	rewound(t, "the other client", other, true)
	if _, err := other.Acquire(t.Context(), b.ID, store.Record{Group: lost.Group}); !errors.Is(err, store.ErrRewound) {
		t.Errorf("acquire before the epoch is raised: %v", err)
	}
	if _, err := other.RaiseEpoch(t.Context(), m.Epoch+1); err != nil {
		t.Fatal(err)
	}
	if got, err := other.Acquire(t.Context(), b.ID, store.Record{Group: lost.Group}); err != nil || got[0].Token <= max(lost.Token, held.Token) {
		t.Errorf("after the raise: %+v, %v; tokens %d and %d were granted before", got, err, held.Token, lost.Token)
	}
}

// A restart, orderly or not, loses nothing and is no rewind.
func TestRestartIsNoRewind(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	s := open(t, server.URL())
	a := session(t, s, "a")
	for range 3 {
		take(t, s, a.ID)
		server.Restart()
		rewound(t, "after a restart", s, false)
	}
	eventually(t, "acquire", func(ctx context.Context) error {
		_, err := s.KeepAlive(ctx, a.ID)
		return err
	})
	take(t, s, a.ID)
}

// A promoted asynchronous standby that missed one grant is noticed; one that missed nothing
// is not taken for a loss. The client finds the new primary by itself.
func TestPromoted(t *testing.T) {
	t.Parallel()
	for name, missed := range map[string]bool{"missed one grant": true, "missed nothing": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := servertest.Postgres(t, fast())
			standby := primary.Standby()
			s := open(t, at(primary, primary.Addr()+","+standby.Addr()))
			a := session(t, s, "a")
			last := take(t, s, a.ID)
			caughtUp(t, primary, standby)
			if missed {
				standby.Kill()
				last = take(t, s, a.ID)
			}
			primary.Kill()
			if missed {
				standby.Start()
			}
			exec(t, standby.URL(), "SELECT pg_promote()")
			m := rewound(t, "after the promotion", s, missed)
			if !missed {
				eventually(t, "keep-alive", func(ctx context.Context) error {
					_, err := s.KeepAlive(ctx, a.ID)
					return err
				})
				return
			}
			if !strings.Contains(m.Why, "timeline") && !strings.Contains(m.Why, "index") {
				t.Errorf("why: %q", m.Why)
			}
			if _, err := s.Acquire(t.Context(), a.ID, store.Record{Group: last.Group}); !errors.Is(err, store.ErrRewound) {
				t.Errorf("acquire of the lost group: %v", err)
			}
			if _, err := s.RaiseEpoch(t.Context(), m.Epoch+1); err != nil {
				t.Fatal(err)
			}
			b := session(t, s, "b")
			if got, err := s.Acquire(t.Context(), b.ID, store.Record{Group: last.Group}); err != nil || got[0].Token <= last.Token {
				t.Errorf("after the raise: %+v, %v; want a token above %d", got, err, last.Token)
			}
		})
	}
}

// caughtUp waits until the standby has replayed what the primary has written.
func caughtUp(t *testing.T, primary, standby *servertest.Server) {
	t.Helper()
	value := func(ctx context.Context, url, sql string, args ...any) (v string, err error) {
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			return "", err
		}
		defer func() { _ = c.Close(ctx) }()
		err = c.QueryRow(ctx, sql, args...).Scan(&v)
		return v, err
	}
	eventually(t, "the standby catches up", func(ctx context.Context) error {
		lsn, err := value(ctx, primary.URL(), "SELECT pg_current_wal_lsn()::text")
		if err != nil {
			return err
		}
		done, err := value(ctx, standby.URL(), "SELECT (coalesce(pg_last_wal_replay_lsn(), '0/0') >= $1::text::pg_lsn)::text", lsn)
		if err == nil && done != "true" {
			err = errors.New("behind " + lsn)
		}
		return err
	})
}

// A leader that is cut off from the server stops believing before the next one begins.
func TestNoOverlap(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, fast())
	var ways [2]storetest.Way
	for i := range ways {
		p := enginetest.NewProxy(t, server.Addr())
		ways[i] = storetest.Way{Store: open(t, at(server, p.Addr())), Cut: p.Cut, Heal: p.Heal}
	}
	storetest.NoOverlap(t, 2*time.Second, ways, storetest.Rounds(t, 2))
}

// An outage that is shorter than the TTL costs no term, whether the server is killed, refuses
// connections or is silent.
func TestOutage(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, fast())
	proxy := enginetest.NewProxy(t, server.Addr())
	const ttl = 20 * time.Second
	term := storetest.Lead(t, storetest.Candidate(t, open(t, at(server, proxy.Addr())), "a", ttl, "g"))
	// remains waits until the time that is left of the term is below or above a limit.
	remains := func(what string, enough func(time.Duration) bool) {
		t.Helper()
		eventually(t, what, func(context.Context) error {
			if term.Context().Err() != nil {
				t.Fatalf("%s: the term ended: %v", what, context.Cause(term.Context()))
			}
			if left := term.Remaining(); !enough(left) {
				return fmt.Errorf("%v is left", left)
			}
			return nil
		})
	}
	for _, fault := range []struct {
		name        string
		begin, over func()
	}{
		{"killed", server.Kill, server.Start},
		{"refused", proxy.Refuse, proxy.Heal},
		{"black-holed", proxy.Cut, proxy.Heal},
	} {
		fault.begin()
		remains(fault.name+", no keep-alive arrives", func(left time.Duration) bool { return left < ttl*7/10 })
		fault.over()
		remains(fault.name+", over", func(left time.Duration) bool { return left > ttl*8/10 })
	}
}

// After an outage that is longer than the TTL there is a leader again, with a larger token.
func TestLongOutage(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, fast())
	proxy := enginetest.NewProxy(t, server.Addr())
	e := storetest.Candidate(t, open(t, at(server, proxy.Addr())), "a", 2*time.Second, "g")
	term := storetest.Lead(t, e)
	proxy.Cut()
	select {
	case <-term.Context().Done():
	case <-time.After(patience):
		t.Fatal("the leader believes without the server")
	}
	if !errors.Is(context.Cause(term.Context()), tenure.ErrExpired) {
		t.Errorf("the term ended with %v", context.Cause(term.Context()))
	}
	proxy.Heal()
	_ = term.Resign(t.Context())
	if again := storetest.Lead(t, e); again.Token() <= term.Token() {
		t.Errorf("token %d after token %d", again.Token(), term.Token())
	}
}

// A watch whose notifications do not arrive begins to poll, and misses nothing.
func TestNotificationsLost(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, fast())
	mute := strings.Replace(postgres.SQL, `PERFORM pg_notify(btrim('"tenure_store"', '"')`, "PERFORM pg_notify('elsewhere'", 1)
	if mute == postgres.SQL {
		t.Fatal("the schema notifies in another way")
	}
	exec(t, server.URL(), mute)
	d, err := postgres.NewDriver(postgres.Config{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := 0
	for c, err := range d.Watch(ctx, 0, "record/") {
		if err != nil {
			t.Fatalf("after %d changes: %v", began, err)
		}
		if c.Key != "" {
			t.Errorf("a notification arrived: %+v", c)
		}
		if began++; began == 4 {
			return
		}
		if _, err := d.Commit(ctx, kv.Txn{Then: []kv.Write{{Key: "record/x", Value: []byte("1")}}}); err != nil {
			t.Fatal(err)
		}
	}
}
