package pgxfence_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/sqlfence"
)

// Tables in a real MariaDB pass the tests of a sink, and every twin with a mistake is caught.
func TestMariaDB(t *testing.T) {
	l := &lazy{t: t, maria: true}
	connected := func(t *testing.T) adapter { return dial(t, sqlfence.MySQL, l.server().URL()) }
	for _, tt := range []struct {
		name string
		test func(*testing.T, adapter)
	}{
		{"by hand", mysqlByHand},
		{"names", mysqlNames},
		{"shared", mysqlShared},
		{"old snapshot", mysqlOldSnapshot},
		{"migrate", mysqlMigrate},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, connected(t)) })
	}
	t.Run("once", func(t *testing.T) { onceOn(t, connected) })
	t.Run("held", func(t *testing.T) {
		fencetest.Run(t, holding(sqlfence.MySQL, maria(l)))
		committed := func() adapter {
			return dial(t, sqlfence.MySQL, l.server().URL()+"?tx_isolation=%27READ-COMMITTED%27")
		}
		heldMarks(t, committed())
		heldInOrder(t, committed())
	})
	t.Run("contract", func(t *testing.T) { fencetest.Run(t, maria(l)) })
	t.Run("inside", func(t *testing.T) {
		fencetest.Run(t, mariaInside(l, "", ""))
		for name, err := range fencetest.Check(t, mariaInside(l, "?tx_isolation=%27READ-COMMITTED%27", ""), fencetest.Atomic, fencetest.NotOvertaken, fencetest.SealWaits) {
			t.Errorf("%s: %v", name, err)
		}
		fencetest.Breaks(t, mariaInside(l, "?tx_isolation=%27READ-COMMITTED%27", " LOCK IN SHARE MODE"), fencetest.SealWaits)
	})
	for _, b := range twins(sqlfence.MySQL, maria(l)) {
		// Whether a crowd meets the mistake depends on its timing, and here it sometimes does not.
		fails := slices.DeleteFunc(slices.Clone(b.fails), func(p fencetest.Promise) bool { return p == fencetest.Atomic })
		t.Run(b.sink.Name, func(t *testing.T) { fencetest.Breaks(t, b.sink, fails...) })
	}
}

// mariaInside is a sink whose guard is a condition of the statement that writes. The broken one
// leaves a part of the guard out.
func mariaInside(l *lazy, options, leaveOut string) fencetest.Sink {
	sink := maria(l)
	sink.Name = "MariaDB, inside" + options + leaveOut
	sink.MarkFirst = true // a write that is not sealed seals first
	sink.Create = func(testing.TB) string { return place(l.server().URL()+options, fresh()) }
	sink.Open = func(where string) (fencetest.Resource, error) {
		a, err := connect(sqlfence.MySQL, where)
		if err != nil {
			return fencetest.Resource{}, err
		}
		r := a.asResource()
		r.WriteStrict = nil
		r.Write = func(ctx context.Context, s fence.Stamp, payload string) error {
			guard, args, err := a.dialect.Inside(a.resource, s, a.resource, payload)
			if err != nil {
				return err
			}
			if leaveOut != "" {
				guard = strings.ReplaceAll(guard, leaveOut, "")
			}
			write := func() error {
				return a.tx(ctx, func(tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, "INSERT INTO effects (resource, payload) SELECT ?, ? FROM DUAL WHERE "+guard, args...)
					if err == nil {
						fencetest.Between(ctx) // the effect is not visible yet
					}
					return a.dialect.WhyRefused(ctx, tx, a.resource, s, err)
				})
			}
			err = write()
			if errors.Is(err, sqlfence.ErrUnsealed) {
				if err = r.Seal(ctx, s); err == nil {
					err = write()
				}
			}
			return err
		}
		return r, nil
	}
	return sink
}

// A mark cannot be lowered by hand, a change waits for admitted transactions, and a guard or a
// migration at the wrong place is refused.
func mysqlByHand(t *testing.T, a adapter) {
	must(t, a.dialect.Sink(a.db, a.resource).Seal(t.Context(), at(5)))
	if _, err := a.db.ExecContext(t.Context(), "UPDATE tenure_mark SET token = 4 WHERE resource = ?", a.resource); err == nil || !strings.Contains(err.Error(), "never goes down") {
		t.Errorf("the mark went down: %v", err)
	}
	if err := a.dialect.Guard(t.Context(), a.db, a.resource, at(5)); err == nil {
		t.Error("a guard without a transaction was admitted")
	}
	tx := beginSQL(t, a)
	must(t, a.dialect.Guard(t.Context(), tx, a.resource, at(5)))
	refusesToWait(t, a, "DELETE FROM tenure_mark WHERE resource = ?", a.resource)
	conn, err := a.db.Conn(t.Context())
	must(t, err)
	defer func() { _ = conn.Close() }()
	if err := a.dialect.OnConn(conn).Migrate(t.Context()); err == nil || !strings.Contains(err.Error(), "Dialect.Migrate") {
		t.Errorf("a migration that commits the caller's transaction: %v", err)
	}
}

// refusesToWait requires that a statement meets a lock that is held.
func refusesToWait(t *testing.T, a adapter, query string, args ...any) {
	t.Helper()
	conn, err := a.db.Conn(t.Context())
	must(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.ExecContext(t.Context(), "SET STATEMENT innodb_lock_wait_timeout = 0 FOR "+query, args...)
	var refused *mysql.MySQLError
	if !errors.As(err, &refused) || !sqlfence.Repeatable(err) {
		t.Errorf("%s, beside an admitted transaction: %v", query, err)
	}
}

// Names are compared byte by byte, and what a column would cut off is refused.
func mysqlNames(t *testing.T, a adapter) {
	ctx := t.Context()
	must(t, a.dialect.Sink(a.db, a.resource).Seal(ctx, at(5)))
	for _, other := range []string{a.resource + " ", strings.ToUpper(a.resource), a.resource + "é"} {
		must(t, a.dialect.Sink(a.db, other).Seal(ctx, at(3)))
	}
	s := at(5)
	for _, group := range []string{"billing ", "Billing"} {
		s.Group = group
		if err := a.dialect.Sink(a.db, a.resource).Seal(ctx, s); word(err) != "foreign" {
			t.Errorf("group %q: %v", group, err)
		}
	}
	long := strings.Repeat("x", 256)
	tx := beginSQL(t, a)
	_, _, digest := a.dialect.GuardStrict(ctx, tx, a.resource, at(5).WithSeq(1), strings.Repeat("x", 1025))
	_, _, key := a.dialect.Once(ctx, tx, a.resource, at(5), long, nil)
	_, held := a.dialect.Hold(ctx, tx, long)
	for what, err := range map[string]error{"resource": a.dialect.Guard(ctx, tx, long, at(5)), "digest": digest, "key": key, "held": held} {
		if word(err) != "invalid" {
			t.Errorf("a long %s: %v", what, err)
		}
	}
}

// Writers with one token do not wait for each other, and a new leader waits for them.
func mysqlShared(t *testing.T, a adapter) {
	ctx := t.Context()
	must(t, a.dialect.Sink(a.db, a.resource).Seal(ctx, at(5)))
	one, two := beginSQL(t, a), beginSQL(t, a)
	for _, tx := range []*sql.Tx{one, two} {
		must(t, a.dialect.Guard(ctx, tx, a.resource, at(5)))
	}
	refusesToWait(t, a, "UPDATE tenure_mark SET token = 6 WHERE resource = ?", a.resource)
	var all sync.WaitGroup
	all.Go(func() {
		if err := a.dialect.Sink(a.db, a.resource).Seal(ctx, at(6)); err != nil {
			t.Error(err)
		}
	})
	must(t, a.effect(ctx, two, "a"))
	must(t, errors.Join(one.Commit(), two.Commit()))
	all.Wait()
	if err := a.write(ctx, at(5), "b"); word(err) != "stale" {
		t.Errorf("an old leader: %v", err)
	}
	a.wants(t, "a")
}

// A guard compares with the newest mark, although the snapshot of its transaction is older.
func mysqlOldSnapshot(t *testing.T, a adapter) {
	ctx := t.Context()
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		a.resource = fresh()
		sink := a.dialect.Sink(a.db, a.resource)
		must(t, sink.Seal(ctx, at(4)))
		tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
		must(t, err)
		// It makes the snapshot and locks nothing of the mark.
		var n int
		must(t, tx.QueryRowContext(ctx, "SELECT count(*) FROM effects WHERE id = 0").Scan(&n))
		must(t, sink.Seal(ctx, at(5)))
		if err := a.dialect.Guard(ctx, tx, a.resource, at(4)); word(err) != "stale" && !sqlfence.Repeatable(err) {
			t.Errorf("%v: %v", level, err)
		}
		must(t, tx.Rollback())
	}
}

// Migrate may run concurrently and repeatedly, and keeps the marks.
func mysqlMigrate(t *testing.T, a adapter) {
	must(t, a.dialect.Sink(a.db, a.resource).Seal(t.Context(), at(5)))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := a.dialect.Migrate(context.Background(), a.db); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if m, err := a.dialect.ReadMark(t.Context(), a.db, a.resource); err != nil || m.Token != fence.Token(5) {
		t.Errorf("the mark is %+v, %v", m, err)
	}
}
