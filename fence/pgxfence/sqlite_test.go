package pgxfence_test

import (
	"database/sql"
	"strings"
	"sync"
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/sqlfence"
)

// deferred begins transactions without the write lock, and does not wait.
func deferred(t *testing.T) (a adapter) {
	t.Helper()
	url := strings.NewReplacer("_txlock=immediate&", "", "busy_timeout(20000)", "busy_timeout(0)").Replace(newSQLite(t))
	return dial(t, sqlfence.SQLite, url)
}

func beginSQL(t *testing.T, a adapter) *sql.Tx {
	t.Helper()
	tx, err := a.db.BeginTx(t.Context(), nil)
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// A guard holds the write lock until the end of the transaction, even if the transaction
// began without it and the mark does not rise: another writer fails as busy.
func TestSQLiteLock(t *testing.T) {
	a := deferred(t)
	sink := a.dialect.Sink(a.db, a.resource)
	must(t, sink.Seal(t.Context(), at(4)))
	tx := beginSQL(t, a)
	must(t, a.dialect.Guard(t.Context(), tx, a.resource, at(4)))
	if err := sink.Seal(t.Context(), at(5)); err == nil || word(err) == "ok" {
		t.Errorf("sealed beside a transaction that was admitted: %v", err)
	}
	must(t, tx.Commit())
	must(t, sink.Seal(t.Context(), at(5)))
}

// A transaction that has read an older state is not admitted.
func TestSQLiteOldSnapshot(t *testing.T) {
	a := deferred(t)
	sink := a.dialect.Sink(a.db, a.resource)
	must(t, sink.Seal(t.Context(), at(4)))
	for _, token := range []fence.Token{4, 5, 6} {
		tx := beginSQL(t, a)
		var n int
		must(t, tx.QueryRowContext(t.Context(), "SELECT count(*) FROM effects").Scan(&n))
		must(t, sink.Seal(t.Context(), at(token+1)))
		if err := a.dialect.Guard(t.Context(), tx, a.resource, at(token)); err == nil || !strings.Contains(err.Error(), "locked") {
			t.Errorf("token %d with an old snapshot: %v", token, err)
		}
		must(t, tx.Rollback())
	}
}

// A mark cannot be lowered by hand, and a guard on a *sql.DB is refused.
func TestSQLiteByHand(t *testing.T) {
	a := deferred(t)
	must(t, a.dialect.Sink(a.db, a.resource).Seal(t.Context(), at(5)))
	if _, err := a.db.ExecContext(t.Context(), "UPDATE tenure_mark SET token = 4"); err == nil {
		t.Error("the mark went down")
	}
	if err := a.dialect.Guard(t.Context(), a.db, a.resource, at(5)); err == nil {
		t.Error("a guard without a transaction was admitted")
	}
}

// Migrate may run concurrently and repeatedly.
func TestSQLiteMigrate(t *testing.T) {
	a := dial(t, sqlfence.SQLite, newSQLite(t))
	must(t, a.dialect.Sink(a.db, a.resource).Seal(t.Context(), at(5)))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := a.dialect.Migrate(t.Context(), a.db); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if m, err := a.dialect.ReadMark(t.Context(), a.db, a.resource); err != nil || m.Token != 5 {
		t.Errorf("the mark is %+v, %v", m, err)
	}
}

// On a database of the version before sessions, the error says what to do; Migrate does it
// and keeps the marks.
func TestSQLiteUpgrade(t *testing.T) {
	a := dial(t, sqlfence.SQLite, newSQLite(t))
	sink := a.dialect.Sink(a.db, a.resource)
	must(t, sink.Seal(t.Context(), at(5)))
	_, err := a.db.ExecContext(t.Context(), "ALTER TABLE tenure_mark DROP COLUMN session")
	must(t, err)
	if err := sink.Seal(t.Context(), at(5)); err == nil || !strings.Contains(err.Error(), "run Migrate") {
		t.Errorf("a database of an older version: %v", err)
	}
	must(t, a.dialect.Migrate(t.Context(), a.db))
	s := at(5)
	s.Session = "a"
	must(t, sink.Seal(t.Context(), s))
	s.Session = "b"
	if err := sink.Seal(t.Context(), s); word(err) != "clone" {
		t.Errorf("a seal by another session: %v", err)
	}
	if m, err := sink.Mark(t.Context()); err != nil || m.Token != 5 || m.Session != "a" {
		t.Errorf("the mark is %+v, %v", m, err)
	}
}

// An invalid dialect is refused.
func TestNoDialect(t *testing.T) {
	a := deferred(t)
	tx := beginSQL(t, a)
	var none sqlfence.Dialect
	if err := none.Guard(t.Context(), tx, a.resource, at(1)); err == nil {
		t.Error("admitted")
	}
	if err := none.Migrate(t.Context(), a.db); err == nil {
		t.Error("migrated")
	}
	if err := none.Sink(a.db, a.resource).Seal(t.Context(), at(1)); err == nil {
		t.Error("sealed")
	}
}
