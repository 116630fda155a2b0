package pgxfence_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/sqlfence"
)

// holding is a sink whose writers hold the mark and apply the rule themselves.
func holding(d sqlfence.Dialect, of fencetest.Sink) fencetest.Sink {
	of = twin("held", d, of, func(a adapter, r *fencetest.Resource) {
		held := func(ctx context.Context, f func(*sql.Tx, *sqlfence.Held) error) error {
			return a.tx(ctx, func(tx *sql.Tx) error {
				h, err := a.dialect.Hold(ctx, tx, a.resource)
				if err != nil {
					return err
				}
				if err := f(tx, h); err != nil {
					return err
				}
				return h.Store(ctx)
			})
		}
		raise := func(rule func(fence.Mark, fence.Stamp) (fence.Mark, error)) func(context.Context, fence.Stamp) error {
			return func(ctx context.Context, s fence.Stamp) error {
				return held(ctx, func(_ *sql.Tx, h *sqlfence.Held) error {
					next, err := rule(h.Mark(a.resource), s)
					if err == nil {
						h.Set(a.resource, next, nil)
					}
					return err
				})
			}
		}
		r.Seal, r.Advance = raise(fence.Mark.Admit), raise(fence.Mark.Advance)
		r.Write = func(ctx context.Context, s fence.Stamp, payload string) error {
			return held(ctx, func(tx *sql.Tx, h *sqlfence.Held) error {
				next, err := h.Mark(a.resource).Admit(s)
				if err != nil {
					return err
				}
				h.Set(a.resource, next, nil)
				fencetest.Between(ctx)
				return a.effect(ctx, tx, payload)
			})
		}
		r.WriteStrict = func(ctx context.Context, s fence.Stamp, digest, payload string) (answer string, err error) {
			err = held(ctx, func(tx *sql.Tx, h *sqlfence.Held) error {
				next, verdict, err := h.Mark(a.resource).AdmitStrict(s, digest)
				if err != nil || verdict == fence.Retry {
					answer = string(h.Answer(a.resource))
					return err
				}
				answer = "made " + payload
				h.Set(a.resource, next, []byte(answer))
				fencetest.Between(ctx)
				return a.effect(ctx, tx, payload)
			})
			return answer, err
		}
	})
	of.Patience = 0
	return of
}

// forgetful is a sink that holds the mark and does not store it.
func forgetful(d sqlfence.Dialect, of fencetest.Sink) fencetest.Sink {
	return twin("held and not stored", d, of, func(a adapter, r *fencetest.Resource) {
		r.Write = func(ctx context.Context, s fence.Stamp, payload string) error {
			return a.tx(ctx, func(tx *sql.Tx) error {
				h, err := a.dialect.Hold(ctx, tx, a.resource)
				if err == nil {
					_, err = h.Mark(a.resource).Admit(s)
				}
				if err != nil {
					return err
				}
				return a.effect(ctx, tx, payload)
			})
		}
	})
}

// Writers that hold the mark pass the tests of a sink.
func TestSQLiteHeld(t *testing.T) {
	fencetest.Run(t, holding(sqlfence.SQLite, sqlite()))
	fencetest.Breaks(t, forgetful(sqlfence.SQLite, sqlite()), fencetest.MarkSurvives)
	heldMarks(t, dial(t, sqlfence.SQLite, newSQLite(t)))
}

func postgresHeld(t *testing.T, l *lazy) {
	fencetest.Run(t, holding(sqlfence.Postgres, postgres(l)))
	heldMarks(t, dial(t, sqlfence.Postgres, l.server().URL()))
	heldWaits(t, dial(t, sqlfence.Postgres, l.server().URL()))
	heldInOrder(t, dial(t, sqlfence.Postgres, l.server().URL()))
	heldSnapshots(t, dial(t, sqlfence.Postgres, l.server().URL()))
	outdatedHold(t, dial(t, sqlfence.Postgres, l.server().URL()))
}

// A held mark and its answer are read back as they were stored, whatever their bytes. Marks
// that were not set stay unchanged. A mark that the rule cannot have returned is refused.
func heldMarks(t *testing.T, a adapter) {
	t.Helper()
	ctx := t.Context()
	names := []string{a.resource + `"'\ é ` + "\u2028", a.resource + "2", a.resource + "3"}
	answer := []byte{0, 255, '"', 0xc3}
	want := fence.Mark{Deployment: `pr"o'd`, Group: "b <&> é", Token: fence.MaxToken, Seq: fence.MaxSeq, Digest: "d", Session: "s"}
	must(t, a.tx(ctx, func(tx *sql.Tx) error {
		h, err := a.dialect.Hold(ctx, tx, names...)
		must(t, err)
		h.Set(names[0], want, answer)
		h.Set(names[1], fence.Mark{Deployment: "prod", Group: "g", Token: 4}, nil)
		return h.Store(ctx)
	}))
	// Hold without resources stores nothing.
	must(t, a.tx(ctx, func(tx *sql.Tx) error {
		h, err := a.dialect.Hold(ctx, tx)
		must(t, err)
		return h.Store(ctx)
	}))
	hold := func(f func(h *sqlfence.Held) error) error {
		return a.tx(ctx, func(tx *sql.Tx) error {
			h, err := a.dialect.Hold(ctx, tx, names...)
			must(t, err)
			if got := h.Mark(names[0]); got != want || string(h.Answer(names[0])) != string(answer) {
				t.Errorf("the mark is %+v with the answer %q, want %+v with %q", got, h.Answer(names[0]), want, answer)
			}
			if got := h.Mark(names[2]); got != (fence.Mark{}) {
				t.Errorf("a mark that was not set is %+v", got)
			}
			return f(h)
		})
	}
	// A mark takes a session that comes later, and keeps its answer.
	must(t, hold(func(h *sqlfence.Held) error {
		want.Session = "t"
		h.Set(names[0], want, nil)
		return h.Store(ctx)
	}))
	for name, wrong := range map[string]fence.Mark{
		"lower":          {Deployment: "prod", Group: "g", Token: 3},
		"another's":      {Deployment: "prod", Group: "other", Token: 5},
		"no name":        {Group: "g", Token: 5},
		"no token":       {Deployment: "prod", Group: "g"},
		"a zero byte":    {Deployment: "prod", Group: "g", Token: 5, Digest: "\x00"},
		"no text at all": {Deployment: "prod", Group: "g", Token: 5, Digest: "\xff"},
	} {
		if err := hold(func(h *sqlfence.Held) error { h.Set(names[1], wrong, nil); return h.Store(ctx) }); err == nil {
			t.Errorf("%s: stored", name)
		}
	}
	if _, err := a.dialect.Hold(ctx, a.db, names...); err == nil {
		t.Error("held without a transaction")
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the mark of a resource that is not held is believed")
			}
		}()
		_ = hold(func(h *sqlfence.Held) error { h.Mark("another"); return nil })
	}()
}

// While a mark is held, a guard with its token waits. Afterwards it compares with the mark
// that the holder stored.
func heldWaits(t *testing.T, a adapter) {
	t.Helper()
	ctx := t.Context()
	must(t, a.dialect.Sink(a.db, a.resource).Seal(ctx, at(4)))
	tx := beginSQL(t, a)
	h, err := a.dialect.Hold(ctx, tx, a.resource)
	must(t, err)
	guarded := make(chan error, 1)
	go func() {
		guarded <- a.tx(ctx, func(tx *sql.Tx) error { return a.dialect.Guard(ctx, tx, a.resource, at(4)) })
	}()
	for deadline := time.Now().Add(30 * time.Second); ; {
		var waiting int
		must(t, a.db.QueryRowContext(ctx, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'").Scan(&waiting))
		if waiting > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the guard does not wait")
		}
	}
	next, err := h.Mark(a.resource).Admit(at(5))
	must(t, err)
	h.Set(a.resource, next, nil)
	must(t, h.Store(ctx))
	must(t, tx.Commit())
	if err := <-guarded; word(err) != "stale" {
		t.Errorf("a guard that waited for a holder who raised the mark: %v", err)
	}
}

// A transaction whose snapshot is older than the mark fails as repeatable. It does not use
// its snapshot, even if that has no mark at all.
func heldSnapshots(t *testing.T, a adapter) {
	t.Helper()
	ctx := t.Context()
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, sealed := range []fence.Token{0, 4} {
			a.resource = fresh()
			sink := a.dialect.Sink(a.db, a.resource)
			if sealed > 0 {
				must(t, sink.Seal(ctx, at(sealed)))
			}
			tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
			must(t, err)
			var n int
			must(t, tx.QueryRowContext(ctx, "SELECT count(*) FROM effects").Scan(&n))
			must(t, sink.Seal(ctx, at(7)))
			h, err := a.dialect.Hold(ctx, tx, a.resource)
			if err == nil {
				var next fence.Mark
				next, err = h.Mark(a.resource).Admit(at(5))
				must(t, err)
				h.Set(a.resource, next, nil)
				err = h.Store(ctx)
			}
			if !sqlfence.Repeatable(err) {
				t.Errorf("%v, sealed with %d before: %v", level, sealed, err)
			}
			must(t, tx.Rollback())
			if m, err := sink.Mark(ctx); err != nil || m.Token != 7 {
				t.Errorf("%v: the mark is %+v, %v", level, m, err)
			}
		}
	}
}

// Many transactions that hold the same new resources, named in any order, do not deadlock.
func heldInOrder(t *testing.T, a adapter) {
	t.Helper()
	ctx := t.Context()
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("%s-%d", a.resource, i))
	}
	var all sync.WaitGroup
	for w := range 6 {
		all.Go(func() {
			for n := range 10 {
				first := (n*3 + w*7) % len(names)
				mine := append(append([]string(nil), names[first:]...), names[:first]...)
				err := a.txOnce(ctx, func(tx *sql.Tx) error {
					h, err := a.dialect.Hold(ctx, tx, mine...)
					if err != nil {
						return err
					}
					for _, r := range mine {
						next, err := h.Mark(r).Admit(at(h.Mark(r).Token + 1))
						if err != nil {
							return err
						}
						h.Set(r, next, nil)
					}
					return h.Store(ctx)
				})
				if err != nil {
					t.Errorf("holder %d: %v", w, err)
				}
			}
		})
	}
	all.Wait()
	for _, r := range names {
		if m, err := a.dialect.ReadMark(ctx, a.db, r); err != nil || m.Token != 60 {
			t.Errorf("%s: the mark is %+v, %v; want token 60", r, m, err)
		}
	}
}

// On a database without the function, the error says what to do.
func outdatedHold(t *testing.T, a adapter) {
	t.Helper()
	tx := beginSQL(t, a)
	_, err := tx.ExecContext(t.Context(), "DROP FUNCTION tenure_hold(text)")
	must(t, err)
	if _, err := a.dialect.Hold(t.Context(), tx, a.resource); err == nil || !strings.Contains(err.Error(), "run Migrate") {
		t.Errorf("a database of an older version: %v", err)
	}
	must(t, tx.Rollback())
}
