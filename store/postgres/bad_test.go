package postgres_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/postgres"
)

// withPasswords starts a server on which every role but the owner needs a password.
func withPasswords(t *testing.T) *servertest.Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "tenure-hba-") // the server runs as another user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	hba := filepath.Join(dir, "pg_hba.conf")
	err = errors.Join(os.Chmod(dir, 0o755),
		os.WriteFile(hba, []byte("host all tenure 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	return servertest.Postgres(t, fast(), servertest.Args("-c", "hba_file="+hba))
}

// Bad input is an error within seconds that names what is wrong, keeps passwords to itself, and
// leaves nothing behind.
func TestBadInput(t *testing.T) {
	t.Parallel()
	server := withPasswords(t)
	exec(t, server.URL(), "CREATE ROLE app LOGIN PASSWORD 'right'", "CREATE ROLE guest LOGIN PASSWORD 'secret'",
		"CREATE SCHEMA foreign_one", "CREATE TABLE foreign_one.items (x int)",
		"CREATE SCHEMA newer", "CREATE TABLE newer.items (x int)", "COMMENT ON TABLE newer.items IS 'Tenure store, schema version 99'")
	url := func(user, database string) string {
		return "postgres://" + user + "@" + server.Addr() + "/" + database + "?sslmode=disable"
	}
	for name, c := range map[string]struct {
		cfg  postgres.Config
		is   error
		says []string
	}{
		"nothing":          {postgres.Config{}, store.ErrInvalid, []string{"URL"}},
		"odd schema":       {postgres.Config{URL: server.URL(), Schema: `a"b`}, store.ErrInvalid, []string{"schema"}},
		"odd ttl":          {postgres.Config{URL: server.URL(), MinTTL: time.Microsecond}, store.ErrInvalid, []string{"min ttl"}},
		"nobody there":     {postgres.Config{URL: "postgres://app:secret@127.0.0.1:1/x?sslmode=disable"}, nil, []string{"127.0.0.1:1", "refused"}},
		"wrong password":   {postgres.Config{URL: url("app:secret", "postgres")}, store.ErrUnauthenticated, []string{"app", "password"}},
		"unknown role":     {postgres.Config{URL: url("nobody:secret", "postgres")}, store.ErrUnauthenticated, []string{"nobody"}},
		"unknown database": {postgres.Config{URL: url("tenure", "missing")}, store.ErrInvalid, []string{"missing", "create the database"}},
		"may not create":   {postgres.Config{URL: url("guest:secret", "postgres")}, store.ErrDenied, []string{"guest", "schema.sql"}},
		"foreign table":    {postgres.Config{URL: server.URL(), Schema: "foreign_one"}, store.ErrInvalid, []string{"foreign_one", "not Tenure's"}},
		"newer schema":     {postgres.Config{URL: server.URL(), Schema: "newer"}, store.ErrNewer, []string{"newer", "99"}},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := tryOpen(t, c.cfg)
			if err == nil {
				t.Fatal("it opened")
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v is not %v", err, c.is)
			}
			for _, word := range c.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not contain %q", err, word)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error has the password: %v", err)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
	if found := schemas(t, server.URL()); found != "foreign_one,newer" {
		t.Errorf("schemas after all errors: %s", found)
	}
}

// schemas lists those that are not PostgreSQL's own.
func schemas(t *testing.T, url string) (names string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	err = c.QueryRow(t.Context(), "SELECT coalesce(string_agg(nspname, ',' ORDER BY nspname), '') FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname NOT IN ('public', 'information_schema')").Scan(&names)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A role with the rights that schema.sql names, and no others, can use a schema that the owner
// created. A right that is taken away is an error that says so.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	server := withPasswords(t)
	exec(t, server.URL(), "CREATE ROLE app LOGIN PASSWORD 'right'", postgres.SQL)
	for line := range strings.Lines(postgres.SQL) {
		if grant, ok := strings.CutPrefix(line, "--   GRANT"); ok {
			exec(t, server.URL(), "GRANT"+grant)
		}
	}
	url := "postgres://app:right@" + server.Addr() + "/postgres?sslmode=disable"
	s := open(t, url)
	a := session(t, s, "a")
	take(t, s, a.ID)
	exec(t, server.URL(), `REVOKE UPDATE ON "tenure_store".items FROM app`)
	if _, err := s.KeepAlive(t.Context(), a.ID); !errors.Is(err, store.ErrDenied) {
		t.Errorf("without the right to update: %v", err)
	}
}

// Processes that open an empty database at the same time create one deployment.
func TestOpenTogether(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, fast())
	names := make([]string, 12)
	var all sync.WaitGroup
	for i := range names {
		all.Go(func() {
			s, err := tryOpen(t, postgres.Config{URL: server.URL()})
			if err != nil {
				t.Error(err)
				return
			}
			m, err := s.Meta(t.Context())
			if err != nil {
				t.Error(err)
			}
			names[i] = m.Deployment
		})
	}
	all.Wait()
	for _, n := range names {
		if n == "" || n != names[0] {
			t.Fatalf("deployments: %q", names)
		}
	}
}

// A pool of the caller stays open, and schemas of one database are separate deployments.
func TestPool(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, fast())
	pool, err := pgxpool.New(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var names []string
	for _, schema := range []string{"", "other"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		s, err := postgres.Open(ctx, postgres.Config{Pool: pool, Schema: schema})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.Meta(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, m.Deployment)
		s.Close()
	}
	if names[0] == names[1] {
		t.Errorf("two schemas are deployment %s", names[0])
	}
	if err := pool.Ping(t.Context()); err != nil {
		t.Errorf("after Close the caller's pool says %v", err)
	}
}

// Parse takes the schema out of the URL, and no error of it has a password.
func TestParse(t *testing.T) {
	cfg, err := postgres.Parse("postgres://app:secret@db1:5432,db2:5433/billing?sslmode=disable&tenure_schema=jobs")
	if err != nil || cfg.Schema != "jobs" || cfg.URL != "postgres://app:secret@db1:5432,db2:5433/billing?sslmode=disable" {
		t.Errorf("%+v, %v", cfg, err)
	}
	for _, bad := range []string{
		"mysql://app:secret@db/x", "postgres://app:secret@db:port/x", "postgres://app:sec ret@db/x", "postgres://app:secret%zz@db/x",
		"postgres://app:secret@db/x?sslmode=perhaps", "postgres://app:secret@db/x?%zz", "postgres://app:secret@db/x?tenure_schema=A-B",
		"postgres://app:secret@db/x?pool_max_conns=many", "postgres://app@db/x?password=secret&sslmode=perhaps",
	} {
		_, err := postgres.Parse(bad)
		if !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v", bad, err)
		} else if strings.Contains(err.Error(), "sec") {
			t.Errorf("the error has the password: %v", err)
		}
	}
}

// A store says what its server can lose: nothing alone, the last commits with an asynchronous standby
// or without fsync.
func TestLoses(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	if l := open(t, server.URL()).Caps().Loses; l != "" {
		t.Errorf("alone: %q", l)
	}
	server.Standby()
	eventually(t, "the standby is connected", func(context.Context) error {
		if l := open(t, server.URL()).Caps().Loses; !strings.Contains(l, "asynchronous standby") {
			return errors.New(l)
		}
		return nil
	})
	if l := open(t, servertest.Postgres(t, fast()).URL()).Caps().Loses; !strings.Contains(l, "fsync") {
		t.Errorf("without fsync: %q", l)
	}
}

// A server that is too old is refused.
func TestOldServer(t *testing.T) {
	if err := postgres.CheckServer(110000); !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), "12") {
		t.Errorf("%v", err)
	}
	if err := postgres.CheckServer(120001); err != nil {
		t.Error(err)
	}
}
