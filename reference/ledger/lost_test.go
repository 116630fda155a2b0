package ledger_test

import (
	"bytes"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/client"
	"github.com/tenurehq/tenure/reference/ledger/ledgerhttp"
)

func ids(c *client.Client, t *testing.T, token fence.Token) (api.RangeAnswer, error) {
	t.Helper()
	return c.Allocate(t.Context(), "r", at(token), api.SequenceWrite{Name: "ids", N: 1})
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A ledger whose file is deleted or replaced while it serves acknowledges nothing more, and
// reports that. A client that has seen it refuses the empty one in its place, until an
// operator accepts that.
func TestDatabaseDeleted(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, db string) error{
		"database deleted": func(_ *testing.T, db string) error { return os.Remove(db) },
		"log deleted":      func(_ *testing.T, db string) error { return os.Remove(db + "-wal") },
		"all deleted": func(_ *testing.T, db string) error {
			return errors.Join(os.Remove(db), os.Remove(db+"-wal"), os.Remove(db+"-shm"), os.Remove(db+"-lock"))
		},
		"database replaced": func(t *testing.T, db string) error {
			copyFile(t, db, db+".new")
			return os.Rename(db+".new", db)
		},
		"folder moved": func(_ *testing.T, db string) error { return os.Rename(filepath.Dir(db), filepath.Dir(db)+".old") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := filepath.Join(t.TempDir(), "d", "l.db")
			if err := os.Mkdir(filepath.Dir(db), 0o755); err != nil {
				t.Fatal(err)
			}
			p := startProcess(t, served{DB: db})
			c := p.client()
			if _, err := ids(c, t, 1); err != nil {
				t.Fatal(err)
			}
			if err := harm(t, db); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			for range 3 {
				if r, err := ids(c, t, 1); !errors.Is(err, api.ErrDataLost) {
					t.Errorf("it acknowledged %+v, %v", r, err)
				}
			}
			if err := c.Healthy(t.Context()); !errors.Is(err, api.ErrDataLost) {
				t.Errorf("its health: %v", err)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("it took %v to say so", took)
			}
			if _, err := c.Sequence(t.Context(), "r", "ids"); !errors.Is(err, api.ErrDataLost) {
				t.Errorf("it answers reads: %v", err)
			}
			if _, err := os.Stat(db); name == "all deleted" && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the deleted file came back: %v", err)
			}
			if name != "all deleted" {
				return
			}
			before := c.Seen()
			p.restart()
			if r, err := ids(c, t, 2); !errors.Is(err, api.ErrDataLost) || !strings.Contains(err.Error(), before.ID) {
				t.Errorf("an empty ledger in its place gave %+v, %v", r, err)
			}
			if err := c.Healthy(t.Context()); !errors.Is(err, api.ErrDataLost) {
				t.Errorf("its health: %v", err)
			}
			operator := p.client()
			if _, err := operator.Accept(t.Context(), ""); err == nil {
				t.Error("an operator accepted that nothing was lost")
			}
			now, err := operator.Accept(t.Context(), before.ID)
			if err != nil || now.ID == before.ID {
				t.Fatalf("an operator accepts it: %+v, %v", now, err)
			}
			if r, err := ids(c, t, 2); err != nil || r.First != 1 {
				t.Errorf("after that it gave %+v, %v", r, err)
			}
			if c.Seen().ID != now.ID {
				t.Errorf("the caller knows %v, and it is %v", c.Seen(), now)
			}
		})
	}
}

// A ledger that was restored from an older backup refuses callers that have seen lost data,
// and after that all callers, also after a restart, until an operator accepts its state.
func TestDatabaseRestored(t *testing.T) {
	db := filepath.Join(t.TempDir(), "l.db")
	p := startProcess(t, served{DB: db})
	leader, standby := p.client(), p.client()
	number := func(c *client.Client, token fence.Token) uint64 {
		t.Helper()
		r, err := ids(c, t, token)
		if err != nil {
			t.Fatal(err)
		}
		return r.Last
	}
	number(leader, 1)
	_ = p.stdin.Close() // a backup is made after the ledger has stopped in order
	_ = p.cmd.Wait()
	copyFile(t, db, db+".backup")
	p.start()
	if err := standby.Healthy(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := uint64(0)
	for range 10 {
		last = number(leader, 1)
	}
	p.kill()
	for _, name := range []string{db, db + "-wal", db + "-shm"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	copyFile(t, db+".backup", db)
	p.start()
	refused := func(who string, c *client.Client, token fence.Token) {
		t.Helper()
		if r, err := ids(c, t, token); !errors.Is(err, api.ErrDataLost) {
			t.Errorf("%s, who has seen %v, got %+v, %v", who, c.Seen(), r, err)
		}
		if err := c.Seal(t.Context(), "r", at(token)); !errors.Is(err, api.ErrDataLost) {
			t.Errorf("%s sealed: %v", who, err)
		}
		if _, err := c.PutShared(t.Context(), "prod", "r", "k", []byte("1"), nil); !errors.Is(err, api.ErrDataLost) {
			t.Errorf("%s wrote a shared record: %v", who, err)
		}
		if err := c.Healthy(t.Context()); !errors.Is(err, api.ErrDataLost) {
			t.Errorf("%s finds it healthy: %v", who, err)
		}
	}
	// The standby has not seen the lost data: the leader's report is enough.
	refused("the leader", leader, 1)
	refused("the standby", standby, 2)
	p.restart()
	refused("the standby after a restart", standby, 2)
	refused("somebody new", p.client(), 3)
	operator := p.client()
	now, err := operator.Accept(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*client.Client{leader, standby, p.client()} {
		if err := c.Healthy(t.Context()); err != nil || c.Seen().ID != now.ID {
			t.Errorf("after it was accepted: %v, %v; want %v", err, c.Seen(), now)
		}
	}
	if got := number(standby, 4); got > last {
		t.Errorf("the backup goes on at %d: it was not older", got)
	}
	if _, err := operator.Accept(t.Context(), ""); err == nil {
		t.Error("there is nothing more to accept")
	}
	p.kill()
	raw, err := sql.Open("sqlite", db)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	var holder string
	var seen uint64
	if err := raw.QueryRow("SELECT holder, seen FROM ledger_acceptance WHERE id = ?", now.ID).Scan(&holder, &seen); err != nil || holder != "test" || seen == 0 {
		t.Errorf("the acceptance is on record as by %q, seen %d, %v", holder, seen, err)
	}
}

// A health check finds out that data was lost, before anybody writes.
func TestRestoredIdle(t *testing.T) {
	db := filepath.Join(t.TempDir(), "l.db")
	s := serveHere(t, ledger.Config{DB: db})
	id, err := s.l.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id.Revision += 1000
	if _, err := s.l.Health(t.Context(), id); !errors.Is(err, api.ErrDataLost) {
		t.Errorf("to one who has seen more: %v", err)
	}
	if err := s.Healthy(t.Context()); !errors.Is(err, api.ErrDataLost) {
		t.Errorf("and then to anybody: %v", err)
	}
	resp, v := s.send("GET", "/v1/healthz", "")
	if resp.StatusCode != 503 || v["code"] != "data_lost" {
		t.Errorf("%d %v", resp.StatusCode, v)
	}
}

// A running ledger notices that its database was set back.
func TestRestoredUnderneath(t *testing.T) {
	server := servertest.Postgres(t)
	l := open(t, ledger.Config{DB: server.URL()})
	other := open(t, ledger.Config{DB: server.URL()})
	take := func(l *ledger.Ledger, n int) error {
		for range n {
			if _, err := l.Apply(t.Context(), api.Batch{Resource: "r", Stamp: at(1), Writes: []api.Write{{Sequence: &api.SequenceWrite{Name: "ids", N: 1}}}}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(take(l, 5), take(other, 5), take(l, 5)); err != nil {
		t.Fatalf("two ledgers on one database: %v", err)
	}
	db, err := sql.Open("pgx", server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), "UPDATE ledger_identity SET revision = revision - 3"); err != nil {
		t.Fatal(err)
	}
	if err := take(l, 1); !errors.Is(err, api.ErrDataLost) {
		t.Errorf("the ledger that had seen it: %v", err)
	}
	if err := take(other, 1); !errors.Is(err, api.ErrDataLost) {
		t.Errorf("the other one: %v", err)
	}
	if _, err := other.Accept(t.Context(), "", "operator"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(take(l, 1), take(other, 1)); err != nil {
		t.Errorf("after one of them was told to accept it: %v", err)
	}
}

// Details of the database stay in the log: errors over HTTP name neither its user nor its
// address.
func TestNeutralErrors(t *testing.T) {
	server := servertest.Postgres(t)
	var log bytes.Buffer
	l, err := ledger.Open(t.Context(), ledger.Config{DB: server.URL(), Timeout: 2 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(ledgerhttp.Handler(l, 0))
	defer web.Close()
	server.Kill()
	for _, tt := range []struct{ method, path, body string }{
		{"POST", "/v1/resources/r/batch", aTick}, {"POST", "/v1/resources/r/seal", ""}, {"POST", "/v1/resources/r/sequences/s", `{"n":1}`},
		{"PUT", "/v1/shared/prod/s/k", `{"value":1}`}, {"GET", "/v1/resources", ""}, {"GET", "/v1/rejections", ""}, {"GET", "/v1/healthz", ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, web.URL+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range stamped("7") {
			k, v, _ := strings.Cut(h, ": ")
			req.Header.Set(k, v)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != 503 {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, resp.StatusCode, body)
		}
		for _, secret := range []string{"postgres", "user", "127.0.0.1", "dial", "SQLSTATE"} {
			if bytes.Contains(bytes.ToLower(body), []byte(secret)) {
				t.Errorf("%s %s says %q: %s", tt.method, tt.path, secret, body)
			}
		}
	}
	_ = l.Close()
	if !strings.Contains(log.String(), "127.0.0.1") {
		t.Error("the log does not say which database could not be reached")
	}
}

// A web page with a rebound DNS name or another origin cannot change a mark.
func TestForeignPages(t *testing.T) {
	p := startProcess(t, served{DB: filepath.Join(t.TempDir(), "l.db")})
	c := p.client()
	if err := c.Seal(t.Context(), "r", at(1)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ host, origin string }{{"evil.example", ""}, {"evil.example", "http://evil.example"}, {p.s.Listen, "http://evil.example"}, {p.s.Listen, "null"}} {
		for _, path := range []string{"/v1/resources/r/advance", "/resources/r/advance", "/v1/accept", "/v1/resources", "/metrics"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url()+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range stamped("9007199254740991", "Origin: "+tt.origin) {
				if k, v, _ := strings.Cut(h, ": "); v != "" {
					req.Header.Set(k, v)
				}
			}
			req.Host = tt.host
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden {
				t.Errorf("Host %s, Origin %s, %s: %d", tt.host, tt.origin, path, resp.StatusCode)
			}
		}
	}
	if r, err := c.Resource(t.Context(), "r"); err != nil || r.Token != 1 {
		t.Errorf("the mark is %d, %v", r.Token, err)
	}
}

// Two deployments with the same group on one ledger do not see each other's shared records,
// and the one that does not own the resource cannot write any.
func TestSharedForeign(t *testing.T) {
	s := serveHere(t, ledger.Config{})
	ctx := t.Context()
	for _, d := range []string{"one", "two"} {
		if v, err := s.PutShared(ctx, d, "billing", "k", []byte(`"`+d+`"`), nil); err != nil || v != 1 {
			t.Fatalf("%s: %d, %v", d, v, err)
		}
	}
	if err := s.Seal(ctx, "billing", fence.Stamp{Deployment: "one", Group: "billing", Token: 1}); err != nil {
		t.Fatal(err)
	}
	var foreign *fence.ForeignError
	if _, err := s.PutShared(ctx, "two", "billing", "k", []byte("2"), nil); !errors.As(err, &foreign) {
		t.Errorf("the foreign deployment wrote: %v", err)
	}
	if err := s.DeleteShared(ctx, "two", "billing", "k", nil); !errors.As(err, &foreign) {
		t.Errorf("the foreign deployment deleted: %v", err)
	}
	if r, err := s.Shared(ctx, "one", "billing", "k"); err != nil || string(r.Value) != `"one"` || r.Deployment != "one" {
		t.Errorf("the owner's record is %+v, %v", r, err)
	}
	if _, err := s.PutShared(ctx, "one", "billing", "k", []byte("2"), nil); err != nil {
		t.Errorf("the owner: %v", err)
	}
	if _, err := s.Shared(ctx, "three", "billing", "k"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("another deployment reads: %v", err)
	}
}
