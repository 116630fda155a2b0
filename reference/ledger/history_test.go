package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/database"
	"github.com/tenurehq/tenure/reference/ledger/state"
)

// The newest delivered firings are kept. A pending firing is kept however old it is, until it
// was delivered.
func TestPendingFiringsAreKept(t *testing.T) {
	const keep, ticks = 100, 5
	l := opened(t, Config{History: keep})
	ctx := t.Context()
	apply := func(writes ...api.Write) {
		t.Helper()
		if _, err := l.Apply(ctx, api.Batch{Resource: "r", Stamp: stampAt(1, 0), Writes: writes}); err != nil {
			t.Fatal(err)
		}
	}
	at := int64(1)
	tick := func(deliver func(at int64) bool) {
		t.Helper()
		var writes []api.Write
		for range state.TrimEvery {
			writes = append(writes, api.Write{Fire: &api.FireWrite{Job: "j", DueMS: at, AtMS: at, NextMS: at + 1}})
			if deliver(at) {
				writes = append(writes, api.Write{Delivered: &api.DeliveredWrite{Job: "j", AtMS: at}})
			}
			at++
		}
		apply(writes...)
	}
	count := func() (all, pending int) {
		t.Helper()
		err := l.db.Reader.QueryRowContext(ctx, "SELECT COUNT(*), COALESCE(SUM(pending), 0) FROM firing").Scan(&all, &pending)
		if err != nil {
			t.Fatal(err)
		}
		return all, pending
	}
	apply(api.Write{Job: &api.JobWrite{Key: "j", NextMS: 1}})
	for range ticks {
		tick(func(at int64) bool { return at%64 != 0 })
	}
	if all, pending := count(); pending != ticks*state.TrimEvery/64 || all < keep || all > keep+pending+state.TrimEvery {
		t.Errorf("%d firings are kept, %d pending", all, pending)
	}
	exact(t, l)
	var late []api.Write
	for old := int64(64); old < at; old += 64 {
		late = append(late, api.Write{Delivered: &api.DeliveredWrite{Job: "j", AtMS: old}})
	}
	apply(late...)
	tick(func(int64) bool { return true })
	if all, pending := count(); pending != 0 || all != keep {
		t.Errorf("in the end %d firings are kept, %d pending", all, pending)
	}
	exact(t, l)
}

// A database of the first schema is migrated and keeps its data.
func TestMigrates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.db")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	old := append([]string{"CREATE TABLE ledger_migration (version BIGINT PRIMARY KEY)", "INSERT INTO ledger_migration VALUES (1)"}, database.Migrations[0]...)
	old = append(old, "INSERT INTO fenced_resource VALUES ('r', 'prod', 'billing', 7, 0, '', 3, '', 5)", "INSERT INTO sequence VALUES ('r', 'ids', 41, 7, 1, 5)")
	for _, statement := range old {
		if _, err := db.ExecContext(t.Context(), database.Translate(sqlfence.SQLite, statement)); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	l := opened(t, Config{DB: path})
	b := numbers(1)
	b.Stamp.Token, b.Stamp.Session = 7, "first"
	b.Writes = append(b.Writes, api.Write{Job: &api.JobWrite{Key: "j", NextMS: 1}}, api.Write{Tick: &api.TickWrite{}})
	a, err := l.Apply(t.Context(), b)
	if err != nil || a.Outcomes[0].Sequence.First != 42 || a.Outcomes[1].Job.Version != 1 || a.Outcomes[2].Tick.N != 4 {
		t.Errorf("after the migration: %+v, %v", a, err)
	}
	if _, err := l.Share(t.Context(), api.SharedWrite{Deployment: "prod", Space: "s", Key: "k", Value: []byte("1")}); err != nil {
		t.Error(err)
	}
	// A mark of an older version has no session, and takes the first.
	b.Stamp.Session = "other"
	var clone *fence.CloneError
	if _, err := l.Apply(t.Context(), b); !errors.As(err, &clone) {
		t.Errorf("a write of another session: %v", err)
	}
}

// The marks of a database of the previous version move to the fence's table with all their
// fields: a stale write, a clone and a retry are recognised as before. A ledger of that
// version that still runs on the same PostgreSQL fails.
func TestMigratesMarks(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "l.db")
		marksMove(t, path, "sqlite", path, sqlfence.SQLite)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		url := servertest.Postgres(t).URL()
		marksMove(t, url, "pgx", url, sqlfence.Postgres)
	})
}

func marksMove(t *testing.T, config, driver, source string, d sqlfence.Dialect) {
	t.Helper()
	ctx := t.Context()
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	strict := tick(7, 3, "é")
	strict.Digest, strict.Stamp.Session = "d", "first"
	old := []string{"CREATE TABLE ledger_migration (version BIGINT PRIMARY KEY)", "INSERT INTO ledger_migration VALUES (1), (2), (3), (4)"}
	for _, m := range database.Migrations[:4] {
		old = append(old, m...)
	}
	const columns = "INSERT INTO fenced_resource (name, deployment, grp, max_token, seq, digest, last_tick, answer, updated_ms, session, session_token) VALUES "
	old = append(old, "INSERT INTO ledger_identity VALUES (1, 'l1', 41, 0)",
		columns+`('r', 'prod', 'billing', 7, 3, 'd', 5, '{"resource":"r","token":7,"seq":3,"at_ms":99,"outcomes":[{"tick":{"n":5}}]}', 6, 'first', 7)`,
		columns+`('raised', 'prod', 'billing', 8, 0, '', 0, '', 6, 'older', 7)`,
		columns+`('unmarked', '', '', 0, 0, '', 0, '', 6, '', 0)`)
	for _, statement := range old {
		if _, err := db.ExecContext(ctx, database.Translate(d, statement)); err != nil {
			t.Fatalf("%v in %s", err, statement)
		}
	}
	l := opened(t, Config{DB: config})
	for _, want := range []api.Resource{
		{Name: "r", Deployment: "prod", Group: "billing", Token: 7, Seq: 3, Digest: "d", Session: "first", LastTick: 5, UpdatedMS: 6},
		// The session belongs to a lower token.
		{Name: "raised", Deployment: "prod", Group: "billing", Token: 8, UpdatedMS: 6},
		{Name: "unmarked", UpdatedMS: 6},
	} {
		if got, err := l.Resource(ctx, want.Name); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", want.Name, got, err, want)
		}
	}
	if now, err := l.Identity(ctx); err != nil || now != (api.Identity{ID: "l1", Revision: 41}) {
		t.Errorf("the identity is %+v, %v", now, err)
	}
	if a, err := l.Apply(ctx, strict); err != nil || !a.Retried || a.AtMS != 99 || a.Outcomes[0].Tick.N != 5 {
		t.Errorf("a retry is answered with %+v, %v", a, err)
	}
	var stale *fence.StaleError
	if _, err := l.Apply(ctx, tick(6, 0, "")); !errors.As(err, &stale) || stale.Mark != (fence.Mark{Deployment: "prod", Group: "billing", Token: 7, Seq: 3, Digest: "d", Session: "first"}) {
		t.Errorf("a stale write: %v", err)
	}
	strict.Stamp.Session = "other"
	var clone *fence.CloneError
	if _, err := l.Apply(ctx, strict); !errors.As(err, &clone) || clone.Stamp != strict.Stamp {
		t.Errorf("a clone: %v", err)
	}
	if _, err := db.ExecContext(ctx, "UPDATE fenced_resource SET max_token = 9"); err == nil {
		t.Error("a ledger of the version before can still raise its marks")
	}
}

// A shared write is in the same group as batches that arrive at the same time, and has the
// outcome of that commit.
func TestSharedGathers(t *testing.T) {
	l := opened(t, Config{})
	h := hold(l)
	first, rest := make(chan error, 1), make(chan error, 10)
	go func() { _, err := l.Apply(t.Context(), tick(1, 0, "a")); first <- err }()
	<-h.reached
	for i := range 5 {
		go func() {
			_, err := l.Share(t.Context(), api.SharedWrite{Deployment: "prod", Space: "s", Key: fmt.Sprint(i), Value: []byte("1")})
			rest <- err
		}()
		go func() { _, err := l.Apply(t.Context(), tick(1, 0, "b")); rest <- err }()
	}
	until(t, func() bool { return l.queue.len() == 10 })
	close(h.release)
	if err := <-first; err != nil {
		t.Error(err)
	}
	for range 10 {
		if err := <-rest; err != nil {
			t.Error(err)
		}
	}
	if n := len(h.reached); n != 1 {
		t.Errorf("what waited took %d commits, want 1", n)
	}
	l.db.Commit = func(context.Context, *database.Tx) error { return sql.ErrConnDone }
	if a, err := l.Share(t.Context(), api.SharedWrite{Deployment: "prod", Space: "s", Key: "0", Value: []byte("2")}); err == nil || a.Version != 0 {
		t.Errorf("a commit that failed gave version %d, %v", a.Version, err)
	}
	l.db.Commit = database.Commit
	if r, err := l.Shared(t.Context(), "prod", "s", "0"); err != nil || r.Version != 1 {
		t.Errorf("after it: %+v, %v", r, err)
	}
}
