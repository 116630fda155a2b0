package pgxfence_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/sqlfence"
)

// Tables guarded by sqlfence and by pgxfence pass the tests of a sink on a real PostgreSQL
// whose processes are killed, and every twin with a mistake is caught.
func postgresContract(t *testing.T, l *lazy) {
	t.Run("sql", func(t *testing.T) { fencetest.Run(t, postgres(l)) })
	t.Run("pgx", func(t *testing.T) { fencetest.Run(t, postgresPgx(l)) })
	t.Run("queue", func(t *testing.T) { fencetest.Run(t, postgresQueue(l, pgx.ReadCommitted)) })
	t.Run("one batch", func(t *testing.T) { fencetest.Run(t, postgresOneBatch(l)) })
	t.Run("inside", func(t *testing.T) { fencetest.Run(t, postgresInside(l, pgx.ReadCommitted)) })
	t.Run("inside, serializable", func(t *testing.T) {
		for name, err := range fencetest.Check(t, postgresInside(l, pgx.Serializable), fencetest.Atomic, fencetest.NotOvertaken, fencetest.SealWaits) {
			t.Errorf("%s: %v", name, err)
		}
	})
	for _, level := range levels() {
		t.Run("queue, "+string(level), func(t *testing.T) {
			for name, err := range fencetest.Check(t, postgresQueue(l, level), fencetest.Atomic, fencetest.NotOvertaken, fencetest.SealWaits) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	t.Run("look before the lock", func(t *testing.T) { fencetest.Breaks(t, looksFirst(l), fencetest.NotOvertaken, fencetest.SealWaits) })
	t.Run("a look inside", func(t *testing.T) { fencetest.Breaks(t, looksInside(l), fencetest.SealWaits) })
	for _, b := range twins(sqlfence.Postgres, postgres(l)) {
		t.Run(b.sink.Name, func(t *testing.T) { fencetest.Breaks(t, b.sink, b.fails...) })
	}
}

// The same on SQLite.
func TestSQLiteContract(t *testing.T) {
	t.Run("sql", func(t *testing.T) { fencetest.Run(t, sqlite()) })
	for _, b := range twins(sqlfence.SQLite, sqlite()) {
		t.Run(b.sink.Name, func(t *testing.T) { fencetest.Breaks(t, b.sink, b.fails...) })
	}
}
