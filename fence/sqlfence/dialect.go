package sqlfence

import (
	"context"
	"database/sql"
	_ "embed" // the migrations
	"errors"
	"fmt"
	"strings"

	"github.com/tenurehq/tenure/fence"
)

// Dialect is the kind of database, and how its tables are used.
type Dialect uint8

// The dialects.
const (
	Postgres Dialect = iota + 1 // 11 and later
	SQLite                      // 3.35 and later
	MySQL                       // 8.0.29 and later, and MariaDB 10.6 and later, with InnoDB
)

func (d Dialect) String() string {
	switch d {
	case Postgres:
		return "PostgreSQL"
	case SQLite:
		return "SQLite"
	case MySQL:
		return "MySQL"
	}
	return fmt.Sprintf("Dialect(%d)", uint8(d))
}

//go:embed postgres.sql
var postgresText string

//go:embed sqlite.sql
var sqliteText string

// Migration returns the SQL that installs the tables and functions, for users with their own
// migrations. It may be run repeatedly.
func (d Dialect) Migration() string {
	switch d {
	case Postgres:
		return postgresText
	case SQLite:
		return sqliteText
	case MySQL:
		return mysqlText
	}
	return ""
}

// Statements returns the migration as single statements, for drivers that accept one at a
// time.
func (d Dialect) Statements() []string {
	var all []string
	for paragraph := range strings.SplitSeq(d.Migration(), "\n\n") {
		var lines []string
		for line := range strings.Lines(paragraph) {
			if len(lines) > 0 || !strings.HasPrefix(line, "--") {
				lines = append(lines, line)
			}
		}
		if statement := strings.TrimSpace(strings.Join(lines, "")); statement != "" {
			all = append(all, statement)
		}
	}
	return all
}

// MigrationLock is the advisory lock that Migrate takes on PostgreSQL.
const MigrationLock int64 = 7596553796441985138

// Migrate installs the tables and functions. It may be run concurrently and repeatedly.
func (d Dialect) Migrate(ctx context.Context, db *sql.DB) error {
	err := within(ctx, d, db, func(c *sql.Conn) error { return d.OnConn(c).migrate(ctx) })
	if err != nil {
		return fmt.Errorf("sqlfence: migrate: %w", err)
	}
	return nil
}

// Migrate is Dialect.Migrate in a transaction of the caller, for users who install their own
// tables with those of the fence. On SQLite it takes the write lock first. MySQL commits with
// every table that is created, so it refuses this.
func (b Bound) Migrate(ctx context.Context) error {
	err := b.inTx()
	if err == nil && b.dialect == MySQL {
		err = errors.New("MySQL commits the transaction with every table that is created: use Dialect.Migrate")
	}
	if err == nil {
		err = b.migrate(ctx)
	}
	if err != nil {
		return fmt.Errorf("sqlfence: migrate: %w", err)
	}
	return nil
}

func (b Bound) migrate(ctx context.Context) error {
	if b.dialect == Postgres {
		if _, err := b.run.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", MigrationLock); err != nil {
			return err
		}
	}
	for _, statement := range b.dialect.Statements() {
		if _, err := b.run.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%w in %.60q", err, statement)
		}
	}
	if b.dialect == SQLite {
		return b.addSession(ctx)
	}
	return nil
}

// addSession upgrades a table of an older version: SQLite has no ADD COLUMN IF NOT
// EXISTS.
func (b Bound) addSession(ctx context.Context) error {
	var n int
	err := b.run.QueryRow(ctx, "SELECT count(*) FROM pragma_table_info('tenure_mark') WHERE name = 'session'").Scan(&n)
	if err == nil && n == 0 {
		_, err = b.run.Exec(ctx, "ALTER TABLE tenure_mark ADD COLUMN session TEXT NOT NULL DEFAULT ''")
	}
	return err
}

// within runs f in a transaction that, on SQLite, holds the write lock from the start.
func within(ctx context.Context, d Dialect, db *sql.DB, f func(*sql.Conn) error) error {
	var begin []string
	switch d {
	case Postgres:
		// Whatever the default: after waiting for the lock, it must see the current state.
		begin = []string{"BEGIN ISOLATION LEVEL READ COMMITTED"}
	case SQLite:
		begin = []string{"BEGIN IMMEDIATE"}
	case MySQL:
		// The default locks gaps between rows too, and new marks would deadlock.
		begin = []string{"SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION"}
	default:
		return fmt.Errorf("no dialect: %s", d)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	// BEGIN may have taken effect although it returned an error, when ctx ended.
	for _, statement := range begin {
		if err == nil {
			_, err = conn.ExecContext(ctx, statement)
		}
	}
	if err == nil {
		if err = f(conn); err == nil {
			_, err = conn.ExecContext(ctx, "COMMIT")
		}
	}
	if err != nil {
		// Clean-up runs although ctx may have ended. A connection that cannot be rolled back must not
		// go back to the pool.
		if _, undone := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK"); undone != nil && !strings.Contains(undone.Error(), noneActive) {
			_ = conn.Raw(func(any) error { return errBad })
		}
	}
	return err
}

// noneActive is SQLite's error if there is nothing to roll back.
const noneActive = "no transaction is active"

// Repeatable reports whether the caller may retry the whole transaction after the error:
// a serialization failure (SQLSTATE 40001) or a deadlock (40P01); on MySQL a deadlock (1213), a
// lock that was not free in time (1205) or a row that changed since the snapshot (1020).
func Repeatable(err error) bool {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState() == "40001" || coded.SQLState() == "40P01"
	}
	code := mysqlCode(err)
	return code == mysqlDeadlock || code == mysqlTimeout || code == mysqlChanged
}

// Tx is the transaction of the caller: a *sql.Tx, or a library's wrapper of one. Values that
// begin transactions are refused: a *sql.DB, a *sql.Conn, and types that embed them. A
// wrapper that hides this is not noticed.
type Tx interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

var (
	errPool = errors.New("sqlfence: a pool of connections has no transaction, so a guard on it guards nothing: begin one")
	errConn = errors.New("sqlfence: a connection may have no transaction, and then a guard on it guards nothing: pass the transaction, or use OnConn if one was begun by hand")
)

// inTx refuses a value that is not a transaction, as far as that can be seen.
func inTx(tx Tx) error {
	switch t := tx.(type) {
	case *sql.Tx:
	case interface{ SetMaxOpenConns(n int) }:
		return errPool
	case interface {
		BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
	}:
		// Transactions of some libraries can begin nested ones.
		if _, ends := t.(interface{ Commit() error }); !ends {
			return errConn
		}
	}
	return nil
}

// OnConn binds the dialect to a connection on which the caller has begun a transaction by
// hand, such as BEGIN IMMEDIATE. This cannot be checked: without a transaction a guard
// protects nothing.
func (d Dialect) OnConn(c *sql.Conn) Bound { return d.On(begun{standard{c}}) }

// begun is a connection with a transaction.
type begun struct{ Runner }

// Runner runs statements in a transaction of another driver. See Dialect.On.
type Runner interface {
	QueryRow(ctx context.Context, query string, args ...any) Row
	// Exec returns how many rows were changed.
	Exec(ctx context.Context, query string, args ...any) (int64, error)
}

// Row is one row of a result, or an error instead.
type Row interface{ Scan(dest ...any) error }

// standard is a Runner on database/sql.
type standard struct{ tx Tx }

func (s standard) QueryRow(ctx context.Context, query string, args ...any) Row {
	return s.tx.QueryRowContext(ctx, query, args...)
}

func (s standard) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	r, err := s.tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// Guard admits the stamp to the resource or refuses it. After a refusal nothing of the
// transaction may be committed. After an error that is Repeatable the transaction may be
// repeated. Until the transaction ends no newer leader is admitted; others with the same
// token are, except on SQLite. Guard may come before or after the writes that it guards.
func (d Dialect) Guard(ctx context.Context, tx Tx, resource string, s fence.Stamp) error {
	return d.On(standard{tx}).Guard(ctx, resource, s)
}

// GuardStrict is Guard for a resource with one ordered writer. Apply: make the write, and
// store its answer with Answer. Retry: the write was made before; answer is its answer.
func (d Dialect) GuardStrict(ctx context.Context, tx Tx, resource string, s fence.Stamp, digest string) (fence.Verdict, []byte, error) {
	return d.On(standard{tx}).GuardStrict(ctx, resource, s, digest)
}

// Answer stores the answer for retries of the strict write, in the transaction of the write.
func (d Dialect) Answer(ctx context.Context, tx Tx, resource string, s fence.Stamp, answer []byte) error {
	return d.On(standard{tx}).Answer(ctx, resource, s, answer)
}

// Once guards the resource and makes a step that must not be made twice, whoever leads. key
// identifies the step in the business (see Key). The first call runs step and stores its
// result in the same transaction; every later call returns that result, and again is true. A
// concurrent call waits for the result; if the other call fails or dies, it makes the step
// itself.
//
// The step is made when the transaction commits. If step fails, the caller must roll back,
// including everything that step has written. If it commits all the same, the step counts as
// not made; a row without a result is an error for its readers, never a result.
func (d Dialect) Once(ctx context.Context, tx Tx, resource string, s fence.Stamp, key string, step func(context.Context) ([]byte, error)) (result []byte, again bool, err error) {
	return d.On(standard{tx}).Once(ctx, resource, s, key, step)
}

// ReadMark returns the resource's mark, or the zero Mark if it has none. It works on any
// connection, also a *sql.DB, and may be out of date when the caller reads it.
func (d Dialect) ReadMark(ctx context.Context, q Tx, resource string) (fence.Mark, error) {
	return d.On(standard{q}).ReadMark(ctx, resource)
}

// Sink is a resource of a database, for operations outside the transactions of writers.
type Sink struct {
	dialect  Dialect
	db       *sql.DB
	resource string
}

// Sink returns a resource of db. It is a fence.Sealer.
func (d Dialect) Sink(db *sql.DB, resource string) *Sink {
	return &Sink{dialect: d, db: db, resource: resource}
}

// Seal raises the mark to the stamp's token, after transactions that were admitted with older
// tokens have ended.
func (k *Sink) Seal(ctx context.Context, s fence.Stamp) error {
	return k.alone(ctx, func(b Bound) error {
		return b.admit(ctx, k.resource, s, admission{function: "tenure_admit", rule: fence.Mark.Admit, alone: true})
	})
}

// Advance raises the mark to any token, past the slip rule. It never lowers it.
func (k *Sink) Advance(ctx context.Context, s fence.Stamp) error {
	return k.alone(ctx, func(b Bound) error { return b.Advance(ctx, k.resource, s) })
}

// Mark returns the mark.
func (k *Sink) Mark(ctx context.Context) (fence.Mark, error) {
	return k.dialect.ReadMark(ctx, k.db, k.resource)
}

func (k *Sink) alone(ctx context.Context, f func(Bound) error) error {
	once := func() error {
		return within(ctx, k.dialect, k.db, func(c *sql.Conn) error { return f(k.dialect.OnConn(c)) })
	}
	err := once()
	// These transactions do nothing else, so they can be retried here.
	for Repeatable(err) && ctx.Err() == nil {
		err = once()
	}
	if err != nil && !errors.Is(err, fence.ErrRefused) {
		return fmt.Errorf("sqlfence: resource %q: %w", k.resource, err)
	}
	return err
}
