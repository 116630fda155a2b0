package pgxfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/sqlfence"
)

// A step is executed once, whoever leads and however often it is tried.
func onceOn(t *testing.T, connected func(*testing.T) adapter) {
	for what, test := range map[string]func(*testing.T, adapter){
		"duplicate": onceDuplicate, "failed": onceFailed, "together": onceTogether, "stale": onceStale,
		"not made": onceNotMade, "no key": onceNoKey,
	} {
		t.Run(what, func(t *testing.T) { test(t, connected(t)) })
	}
}

func TestSQLiteOnce(t *testing.T) {
	onceOn(t, func(t *testing.T) adapter { return dial(t, sqlfence.SQLite, newSQLite(t)) })
}

func dial(t *testing.T, d sqlfence.Dialect, url string) adapter {
	t.Helper()
	a, err := connect(d, place(url, fresh()))
	must(t, err)
	t.Cleanup(func() { _ = a.db.Close() })
	return a
}

// once runs a step in its own transaction; the step makes an effect.
func (a adapter) once(ctx context.Context, s fence.Stamp, key, result string) (got string, again bool, err error) {
	err = a.tx(ctx, func(tx *sql.Tx) error {
		r, seen, err := a.dialect.Once(ctx, tx, a.resource, s, key, func(ctx context.Context) ([]byte, error) {
			return []byte(result), a.effect(ctx, tx, key)
		})
		got, again = string(r), seen
		return err
	})
	return got, again, err
}

func (a adapter) wants(t *testing.T, effects ...string) {
	t.Helper()
	if got, err := a.effects(t.Context()); err != nil || strings.Join(got, ";") != strings.Join(effects, ";") {
		t.Errorf("effects %q, %v; want %q", got, err, effects)
	}
}

// A duplicate is a no-op that returns the first result, also under a later leader.
func onceDuplicate(t *testing.T, a adapter) {
	october := sqlfence.Key("2026-10", "account/7")
	for i, token := range []fence.Token{4, 4, 5} {
		got, again, err := a.once(t.Context(), at(token), october, fmt.Sprint("try ", i))
		if err != nil || got != "try 0" || again != (i > 0) {
			t.Errorf("try %d: %q, again %v, %v", i, got, again, err)
		}
	}
	if got, again, err := a.once(t.Context(), at(5), sqlfence.Key("2026-11", "account/7"), ""); err != nil || got != "" || again {
		t.Errorf("another step: %q, again %v, %v", got, again, err)
	}
	a.wants(t, october, sqlfence.Key("2026-11", "account/7"))
}

// A failed step counts as not made, whether its transaction is rolled back or committed. The
// next attempt makes it.
func onceFailed(t *testing.T, a adapter) {
	broken := errors.New("broken")
	for _, commit := range []bool{false, true} {
		tx, err := a.db.BeginTx(t.Context(), nil)
		must(t, err)
		_, _, err = a.dialect.Once(t.Context(), tx, a.resource, at(4), "step", func(context.Context) ([]byte, error) {
			return nil, broken
		})
		if !errors.Is(err, broken) {
			t.Fatalf("the step's error is %v", err)
		}
		if commit {
			must(t, tx.Commit())
		} else {
			must(t, tx.Rollback())
		}
	}
	// A process dies after the step and before the commit.
	tx, err := a.db.BeginTx(t.Context(), nil)
	must(t, err)
	_, _, err = a.dialect.Once(t.Context(), tx, a.resource, at(4), "step", func(ctx context.Context) ([]byte, error) {
		return []byte("lost"), a.effect(ctx, tx, "lost")
	})
	must(t, err)
	must(t, tx.Rollback())
	got, again, err := a.once(t.Context(), at(5), "step", "made")
	if err != nil || got != "made" || again {
		t.Errorf("after failures: %q, again %v, %v", got, again, err)
	}
	a.wants(t, "step")
}

// Of many concurrent attempts one makes the step; the others wait and get its result.
func onceTogether(t *testing.T, a adapter) {
	var first atomic.Int32
	var all sync.WaitGroup
	results := make([]string, 10)
	for i := range results {
		all.Go(func() {
			got, again, err := a.once(t.Context(), at(4), "step", fmt.Sprint("by ", i))
			if err != nil {
				t.Error(err)
			}
			if !again {
				first.Add(1)
			}
			results[i] = got
		})
	}
	all.Wait()
	for _, r := range results {
		if r != results[0] {
			t.Errorf("results %q", results)
			break
		}
	}
	if first.Load() != 1 {
		t.Errorf("%d were the first", first.Load())
	}
	a.wants(t, "step")
}

// A stale leader cannot make a step and does not get the result of one.
func onceStale(t *testing.T, a adapter) {
	must(t, a.dialect.Sink(a.db, a.resource).Seal(t.Context(), at(5)))
	if _, _, err := a.once(t.Context(), at(4), "step", ""); word(err) != "stale" {
		t.Errorf("stale: %v", err)
	}
	a.wants(t)
}

// A step that did not return was not made, although its row was committed; nor was one that
// calls itself. An empty row is not a result.
func onceNotMade(t *testing.T, a adapter) {
	tx, err := a.db.BeginTx(t.Context(), nil)
	must(t, err)
	func() {
		defer func() { _ = recover() }()
		_, _, _ = a.dialect.Once(t.Context(), tx, a.resource, at(4), "step", func(ctx context.Context) ([]byte, error) {
			if got, again, err := a.dialect.Once(ctx, tx, a.resource, at(4), "step", nil); err == nil || again {
				t.Errorf("inside itself: %q, again %v", got, again)
			}
			panic("half way")
		})
	}()
	must(t, tx.Commit())
	if got, again, err := a.once(t.Context(), at(4), "step", "made"); err == nil || again || !strings.Contains(err.Error(), "not made") {
		t.Errorf("after a step that did not return: %q, again %v, %v", got, again, err)
	}
	a.wants(t)
}

// A step without a key is refused.
func onceNoKey(t *testing.T, a adapter) {
	if _, _, err := a.once(t.Context(), at(4), "", "made"); word(err) != "invalid" {
		t.Errorf("an empty key: %v", err)
	}
	a.wants(t)
}

// unremovable is a transaction that cannot delete.
type unremovable struct{ *sql.Tx }

func (u unremovable) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if strings.HasPrefix(query, "DELETE") {
		return nil, errUnremovable
	}
	return u.Tx.ExecContext(ctx, query, args...)
}

var errUnremovable = errors.New("cannot delete")

// If the row of a failed step cannot be removed, the caller gets an error.
func TestOnceRowStays(t *testing.T) {
	a := dial(t, sqlfence.SQLite, newSQLite(t))
	tx := beginSQL(t, a)
	broken := errors.New("broken")
	_, _, err := a.dialect.Once(t.Context(), unremovable{tx}, a.resource, at(4), "step", func(context.Context) ([]byte, error) { return nil, broken })
	if !errors.Is(err, broken) || !errors.Is(err, errUnremovable) {
		t.Errorf("answered %v", err)
	}
}

// Different identities have different keys.
func TestKey(t *testing.T) {
	seen := make(map[string][]string)
	for _, parts := range [][]string{{"a", "b"}, {"a/b"}, {"a", "", "b"}, {`a\`, "b"}, {`a\/b`}, {"ab"}, {"a", "b", ""}, {`a\\`, "b"}} {
		key := sqlfence.Key(parts...)
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q have the key %q", parts, other, key)
		}
		seen[key] = parts
	}
}
