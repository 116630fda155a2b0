package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tenurehq/tenure/fence"
)

// lostAnswer is a database on which BEGIN takes effect and its answer is lost. It records the
// statements.
type lostAnswer struct {
	mu          sync.Mutex
	asked       []string
	cannotUndo  bool
	connections int
}

func (l *lostAnswer) Connect(context.Context) (driver.Conn, error) {
	l.connections++
	return lostConn{l}, nil
}

func (l *lostAnswer) Driver() driver.Driver { return nil }

type lostConn struct{ *lostAnswer }

func (c lostConn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (c lostConn) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }

func (c lostConn) Close() error { c.note("close"); return nil }

func (c lostConn) note(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	word, _, _ := strings.Cut(what, " ")
	c.asked = append(c.asked, word)
}

func (c lostConn) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	c.note(query)
	if strings.HasPrefix(query, "BEGIN") || c.cannotUndo {
		return nil, io.ErrUnexpectedEOF
	}
	return driver.RowsAffected(0), nil
}

// If BEGIN fails but has taken effect, the transaction is not returned to the pool: it is
// rolled back, or its connection is closed.
func TestBeginFails(t *testing.T) {
	for _, cannotUndo := range []bool{false, true} {
		l := &lostAnswer{cannotUndo: cannotUndo}
		db := sql.OpenDB(l)
		err := SQLite.Sink(db, "r").Seal(t.Context(), fence.Stamp{Deployment: "prod", Group: "billing", Token: 4})
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("sealed: %v", err)
		}
		want := []string{"BEGIN", "ROLLBACK"}
		if cannotUndo {
			want = append(want, "close")
		}
		if !slices.Equal(l.asked, want) {
			t.Errorf("the connection was asked %q, want %q", l.asked, want)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// These types stand for libraries that wrap database/sql.
type (
	libraryDB   struct{ *sql.DB }
	libraryConn struct{ *sql.Conn }
	libraryTx   struct{ *sql.Tx }
	nestedTx    struct{ libraryTx }
)

func (nestedTx) BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error) {
	return nil, errors.ErrUnsupported
}

// A value that begins transactions is not accepted as one, however it is wrapped. A
// transaction is, and a connection that the caller declares to have one.
func TestNoTransaction(t *testing.T) {
	s := fence.Stamp{Deployment: "prod", Group: "billing", Token: 4, Seq: 1}
	for _, d := range []Dialect{Postgres, SQLite} {
		for _, tt := range []struct {
			tx   Tx
			want error
		}{
			{(*sql.DB)(nil), errPool}, {libraryDB{}, errPool}, {&libraryDB{}, errPool},
			{(*sql.Conn)(nil), errConn}, {libraryConn{}, errConn},
		} {
			_, _, strict := d.GuardStrict(t.Context(), tt.tx, "r", s, "d")
			_, _, once := d.Once(t.Context(), tt.tx, "r", s, "key", nil)
			for what, err := range map[string]error{
				"guard": d.Guard(t.Context(), tt.tx, "r", s), "strict": strict, "once": once, "answer": d.Answer(t.Context(), tt.tx, "r", s, nil),
			} {
				if !errors.Is(err, tt.want) {
					t.Errorf("%s: %s on a %T: %v", d, what, tt.tx, err)
				}
			}
		}
	}
	for _, tx := range []Tx{(*sql.Tx)(nil), libraryTx{}, nestedTx{}} {
		if err := inTx(tx); err != nil {
			t.Errorf("%T: %v", tx, err)
		}
	}
	if err := SQLite.OnConn(nil).inTx(); err != nil {
		t.Errorf("a connection with a transaction: %v", err)
	}
}

type coded string

func (c coded) Error() string    { return string(c) }
func (c coded) SQLState() string { return string(c) }

// Only serialization failures and deadlocks may be repeated.
func TestRepeatable(t *testing.T) {
	for err, want := range map[error]bool{
		coded("40001"): true, wrap("r", coded("40P01")): true, coded("TN001"): false, coded("25P02"): false, io.EOF: false, nil: false,
	} {
		if Repeatable(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
}
