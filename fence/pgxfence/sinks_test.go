package pgxfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/pgxfence"
	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/internal/servertest"
)

// lazy starts a server on first use, PostgreSQL unless maria is set. A child process never uses it.
type lazy struct {
	t     testing.TB
	maria bool
	once  sync.Once
	s     *servertest.Server
}

func (l *lazy) server() *servertest.Server {
	l.once.Do(func() {
		// The tests kill processes, not machines, so fsync is not needed.
		driver, dialect, effects := "pgx", sqlfence.Postgres, "CREATE TABLE effects (id bigserial PRIMARY KEY, resource text NOT NULL, payload text NOT NULL)"
		if l.maria {
			driver, dialect = "mysql", sqlfence.MySQL
			effects = "CREATE TABLE effects (id bigint AUTO_INCREMENT PRIMARY KEY, resource varchar(255) NOT NULL, payload text NOT NULL, KEY (resource))"
			l.s = servertest.MariaDB(l.t, servertest.Args("--innodb-flush-log-at-trx-commit=2"))
		} else {
			l.s = servertest.Postgres(l.t, servertest.Args("-c", "fsync=off"))
		}
		db, err := sql.Open(driver, l.s.URL())
		if err == nil {
			_, err = db.ExecContext(context.Background(), effects)
			err = errors.Join(err, dialect.Migrate(context.Background(), db), db.Close())
		}
		if err != nil {
			l.t.Fatal(err)
		}
	})
	return l.s
}

// place encodes where a resource is: its database and its name.
func place(url, resource string) string { return url + "\n" + resource }

func fresh() string { return "r" + strconv.FormatUint(rand.Uint64(), 36) }

// postgres is a sink through database/sql.
func postgres(l *lazy) fencetest.Sink {
	return fencetest.Sink{
		Name:    "PostgreSQL, database/sql",
		Create:  func(testing.TB) string { return place(l.server().URL(), fresh()) },
		Open:    func(where string) (fencetest.Resource, error) { return openSQL(sqlfence.Postgres, where) },
		Restart: func(testing.TB) { l.server().Restart() },
	}
}

// maria is a sink on MariaDB, at the isolation level at which a missing row locks nothing.
func maria(l *lazy) fencetest.Sink {
	return fencetest.Sink{
		Name:     "MariaDB",
		Patience: 2 * time.Minute,
		Create: func(testing.TB) string {
			return place(l.server().URL()+"?tx_isolation=%27READ-COMMITTED%27", fresh())
		},
		Open:    func(where string) (fencetest.Resource, error) { return openSQL(sqlfence.MySQL, where) },
		Restart: func(testing.TB) { l.server().Restart() },
	}
}

func sqlite() fencetest.Sink {
	return fencetest.Sink{
		Name: "SQLite",
		Create: func(t testing.TB) string {
			return place(newSQLite(t), fresh())
		},
		Open: func(where string) (fencetest.Resource, error) { return openSQL(sqlfence.SQLite, where) },
	}
}

func newSQLite(t testing.TB) string {
	t.Helper()
	url := "file:" + filepath.Join(t.TempDir(), "db") + "?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"
	db, err := sql.Open("sqlite", url)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), "CREATE TABLE effects (id INTEGER PRIMARY KEY AUTOINCREMENT, resource TEXT NOT NULL, payload TEXT NOT NULL)")
	if err := errors.Join(err, sqlfence.SQLite.Migrate(t.Context(), db), db.Close()); err != nil {
		t.Fatal(err)
	}
	return url
}

// adapter is a resource in a database, as the tests use it.
type adapter struct {
	dialect  sqlfence.Dialect
	db       *sql.DB
	resource string
}

func connect(d sqlfence.Dialect, where string) (adapter, error) {
	url, resource, _ := strings.Cut(where, "\n")
	driver, most := "pgx", 8
	switch d {
	case sqlfence.SQLite:
		driver, most = "sqlite", 2
	case sqlfence.MySQL:
		driver = "mysql"
	}
	db, err := sql.Open(driver, url)
	if err != nil {
		return adapter{}, err
	}
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	return adapter{dialect: d, db: db, resource: resource}, nil
}

func (a adapter) numbered(query string) string {
	switch a.dialect {
	case sqlfence.SQLite:
		return strings.ReplaceAll(query, "$", "?")
	case sqlfence.MySQL:
		return strings.NewReplacer("$1", "?", "$2", "?").Replace(query)
	}
	return query
}

// repeated retries a transaction that may be repeated, as users should.
func repeated(ctx context.Context, f func() error) error {
	err := f()
	for sqlfence.Repeatable(err) && ctx.Err() == nil {
		err = f()
	}
	return err
}

func (a adapter) tx(ctx context.Context, f func(*sql.Tx) error) error {
	return repeated(ctx, func() error { return a.txOnce(ctx, f) })
}

func (a adapter) txOnce(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := a.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // also if f panics
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (a adapter) effect(ctx context.Context, tx *sql.Tx, payload string) error {
	_, err := tx.ExecContext(ctx, a.numbered("INSERT INTO effects (resource, payload) VALUES ($1, $2)"), a.resource, payload)
	return err
}

func (a adapter) write(ctx context.Context, s fence.Stamp, payload string) error {
	return a.tx(ctx, func(tx *sql.Tx) error {
		if err := a.dialect.Guard(ctx, tx, a.resource, s); err != nil {
			return err
		}
		fencetest.Between(ctx)
		return a.effect(ctx, tx, payload)
	})
}

func (a adapter) writeStrict(ctx context.Context, s fence.Stamp, digest, payload string) (answer string, err error) {
	err = a.tx(ctx, func(tx *sql.Tx) error {
		verdict, stored, err := a.dialect.GuardStrict(ctx, tx, a.resource, s, digest)
		if err != nil || verdict == fence.Retry {
			answer = string(stored)
			return err
		}
		fencetest.Between(ctx)
		answer = "made " + payload
		return errors.Join(a.effect(ctx, tx, payload), a.dialect.Answer(ctx, tx, a.resource, s, []byte(answer)))
	})
	return answer, err
}

func (a adapter) effects(ctx context.Context) ([]string, error) {
	rows, err := a.db.QueryContext(ctx, a.numbered("SELECT payload FROM effects WHERE resource = $1 ORDER BY id"), a.resource)
	if err != nil {
		return nil, err
	}
	var all []string
	for rows.Next() {
		var p string
		if err := rows.Scan(&p); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		all = append(all, p)
	}
	return all, errors.Join(rows.Err(), rows.Close())
}

func (a adapter) asResource() fencetest.Resource {
	sink := a.dialect.Sink(a.db, a.resource)
	return fencetest.Resource{
		Write: a.write, WriteStrict: a.writeStrict, Effects: a.effects,
		Mark: sink.Mark, Seal: sink.Seal, Advance: sink.Advance, Close: a.db.Close,
	}
}

func openSQL(d sqlfence.Dialect, where string) (fencetest.Resource, error) {
	a, err := connect(d, where)
	if err != nil {
		return fencetest.Resource{}, err
	}
	return a.asResource(), nil
}

// postgresPgx is a sink through pgx.
func postgresPgx(l *lazy) fencetest.Sink {
	return overPgx("PostgreSQL, pgx", l, pgxResource)
}

func overPgx(name string, l *lazy, resource func(*pgxpool.Pool, string) fencetest.Resource) fencetest.Sink {
	s := postgres(l)
	s.Name = name
	s.Open = func(where string) (fencetest.Resource, error) {
		url, of, _ := strings.Cut(where, "\n")
		pool, err := pgxpool.New(context.Background(), url+"&pool_max_conns=8")
		if err != nil {
			return fencetest.Resource{}, err
		}
		return resource(pool, of), nil
	}
	return s
}

// postgresQueue is a sink through Queue. Here the guard is a batch of its own, so that a
// write can be paused after it.
func postgresQueue(l *lazy, level pgx.TxIsoLevel) fencetest.Sink {
	return queueing("PostgreSQL, a batch", l, level, func(ctx context.Context, tx pgx.Tx, resource string, s fence.Stamp) error {
		batch := &pgx.Batch{}
		if err := pgxfence.Queue(batch, resource, s); err != nil {
			return err
		}
		return tx.SendBatch(ctx, batch).Close()
	})
}

// postgresOneBatch is a sink whose transaction is one batch.
func postgresOneBatch(l *lazy) fencetest.Sink {
	s := overPgx("PostgreSQL, all in one batch", l, func(pool *pgxpool.Pool, resource string) fencetest.Resource {
		r := pgxResource(pool, resource)
		r.WriteStrict = nil
		r.Write = func(ctx context.Context, s fence.Stamp, payload string) error {
			return repeated(ctx, func() error {
				batch := &pgx.Batch{}
				if err := pgxfence.Queue(batch, resource, s); err != nil {
					return err
				}
				batch.Queue("INSERT INTO effects (resource, payload) VALUES ($1, $2)", resource, payload)
				return pool.SendBatch(ctx, batch).Close()
			})
		}
		return r
	})
	s.NoMoment = "guard and write reach the server in one message, and it is not asked to stop between them"
	return s
}

// postgresInside is a sink whose guard is a condition of the statement that writes.
func postgresInside(l *lazy, level pgx.TxIsoLevel) fencetest.Sink {
	return insideOf(l, "PostgreSQL, inside, "+string(level), level, "")
}

// looksInside compares the mark in the statement, without a lock.
func looksInside(l *lazy) fencetest.Sink {
	return insideOf(l, "PostgreSQL, a look inside", pgx.ReadCommitted, "$2 = $2 AND (SELECT token = $6 AND $4 = deployment AND $5 = grp AND $7 = $7 FROM tenure_mark WHERE resource = $3)")
}

// insideOf is a sink whose statement has this condition instead of the guard, if it is given.
func insideOf(l *lazy, name string, level pgx.TxIsoLevel, instead string) fencetest.Sink {
	sink := overPgx(name, l, func(pool *pgxpool.Pool, resource string) fencetest.Resource {
		r := pgxResource(pool, resource)
		r.WriteStrict = nil
		write := func(ctx context.Context, s fence.Stamp, payload string) error {
			guard, args, err := pgxfence.Inside(resource, s, resource, payload)
			if err != nil {
				return err
			}
			if instead != "" {
				guard = instead
			}
			return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, "INSERT INTO effects (resource, payload) SELECT $1, $2::text WHERE "+guard, args...)
				if err == nil && tag.RowsAffected() == 0 {
					err = sqlfence.ErrUnsealed
				}
				if err == nil {
					fencetest.Between(ctx) // the effect is not visible yet
				}
				return pgxfence.Refusal(resource, s, err)
			})
		}
		r.Write = func(ctx context.Context, s fence.Stamp, payload string) error {
			return repeated(ctx, func() error {
				err := write(ctx, s, payload)
				if errors.Is(err, sqlfence.ErrUnsealed) {
					if err = r.Seal(ctx, s); err == nil {
						err = write(ctx, s, payload)
					}
				}
				return err
			})
		}
		return r
	})
	sink.MarkFirst = true // a write that is not sealed seals first
	return sink
}

// looksFirst reads the mark before it takes the lock of the token.
func looksFirst(l *lazy) fencetest.Sink {
	s := queueing("PostgreSQL, a look before the lock", l, pgx.ReadCommitted, func(ctx context.Context, tx pgx.Tx, resource string, s fence.Stamp) error {
		m, err := pgxfence.ReadMark(ctx, tx, resource)
		if err != nil {
			return err
		}
		if m.Token != s.Token || m.Deployment != s.Deployment || m.Group != s.Group {
			return pgxfence.Guard(ctx, tx, resource, s)
		}
		fencetest.Between(ctx)
		_, err = tx.Exec(ctx, "SELECT pg_advisory_xact_lock_shared(tenure_lock_key($1, $2))", resource, int64(s.Token))
		return err
	})
	s.Patience = 10 * time.Second
	return s
}

func queueing(name string, l *lazy, level pgx.TxIsoLevel, guard func(ctx context.Context, tx pgx.Tx, resource string, s fence.Stamp) error) fencetest.Sink {
	return overPgx(name+", "+string(level), l, func(pool *pgxpool.Pool, resource string) fencetest.Resource {
		r := pgxResource(pool, resource)
		r.WriteStrict = nil
		r.Write = func(ctx context.Context, s fence.Stamp, payload string) error {
			return repeated(ctx, func() error {
				return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
					if err := guard(ctx, tx, resource, s); err != nil {
						return err
					}
					fencetest.Between(ctx)
					_, err := tx.Exec(ctx, "INSERT INTO effects (resource, payload) VALUES ($1, $2)", resource, payload)
					return err
				})
			})
		}
		return r
	})
}

func levels() []pgx.TxIsoLevel {
	return []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
}

func pgxResource(pool *pgxpool.Pool, resource string) fencetest.Resource {
	sink := pgxfence.NewSink(pool, resource)
	effect := func(ctx context.Context, tx pgx.Tx, payload string) error {
		_, err := tx.Exec(ctx, "INSERT INTO effects (resource, payload) VALUES ($1, $2)", resource, payload)
		return err
	}
	return fencetest.Resource{
		Write: func(ctx context.Context, s fence.Stamp, payload string) error {
			return repeated(ctx, func() error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					if err := pgxfence.Guard(ctx, tx, resource, s); err != nil {
						return err
					}
					fencetest.Between(ctx)
					return effect(ctx, tx, payload)
				})
			})
		},
		WriteStrict: func(ctx context.Context, s fence.Stamp, digest, payload string) (answer string, err error) {
			err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				verdict, stored, err := pgxfence.GuardStrict(ctx, tx, resource, s, digest)
				if err != nil || verdict == fence.Retry {
					answer = string(stored)
					return err
				}
				fencetest.Between(ctx)
				answer = "made " + payload
				return errors.Join(effect(ctx, tx, payload), pgxfence.Answer(ctx, tx, resource, s, []byte(answer)))
			})
			return answer, err
		},
		Effects: func(ctx context.Context) ([]string, error) {
			rows, err := pool.Query(ctx, "SELECT payload FROM effects WHERE resource = $1 ORDER BY id", resource)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowTo[string])
		},
		Mark: sink.Mark, Seal: sink.Seal, Advance: sink.Advance,
		Close: func() error { pool.Close(); return nil },
	}
}

// twin is a sink with a mistake.
func twin(name string, d sqlfence.Dialect, of fencetest.Sink, mistake func(a adapter, r *fencetest.Resource)) fencetest.Sink {
	of.Name += ", " + name
	of.Patience = 10 * time.Second
	of.Open = func(where string) (fencetest.Resource, error) {
		a, err := connect(d, where)
		if err != nil {
			return fencetest.Resource{}, err
		}
		r := a.asResource()
		mistake(a, &r)
		return r, nil
	}
	return of
}

type broken struct {
	sink  fencetest.Sink
	fails []fencetest.Promise
}

// twins have typical mistakes.
func twins(d sqlfence.Dialect, of fencetest.Sink) []broken {
	return []broken{
		{twin("check apart", d, of, func(a adapter, r *fencetest.Resource) {
			r.Write = func(ctx context.Context, s fence.Stamp, payload string) error {
				if err := a.tx(ctx, func(tx *sql.Tx) error { return a.dialect.Guard(ctx, tx, a.resource, s) }); err != nil {
					return err
				}
				fencetest.Between(ctx)
				return a.tx(ctx, func(tx *sql.Tx) error { return a.effect(ctx, tx, payload) })
			}
		}), []fencetest.Promise{fencetest.NotOvertaken, fencetest.Atomic, fencetest.KillBetween}},
		{twin("look without a lock", d, of, func(a adapter, r *fencetest.Resource) {
			r.Write = func(ctx context.Context, s fence.Stamp, payload string) error {
				m, err := a.dialect.ReadMark(ctx, a.db, a.resource)
				if err != nil {
					return err
				}
				if _, err := m.Admit(s); err != nil {
					return err
				}
				if s.Token != m.Token {
					return a.write(ctx, s, payload)
				}
				fencetest.Between(ctx)
				return a.tx(ctx, func(tx *sql.Tx) error { return a.effect(ctx, tx, payload) })
			}
		}), []fencetest.Promise{fencetest.NotOvertaken}},
		{twin("mark in memory", d, of, func(a adapter, r *fencetest.Resource) {
			var mu sync.Mutex
			var mark fence.Mark
			r.Mark = nil
			r.Write = func(ctx context.Context, s fence.Stamp, payload string) (err error) {
				mu.Lock()
				defer mu.Unlock()
				if mark, err = mark.Admit(s); err != nil {
					return err
				}
				return a.tx(ctx, func(tx *sql.Tx) error { return a.effect(ctx, tx, payload) })
			}
		}), []fencetest.Promise{fencetest.MarkSurvives, fencetest.Atomic}},
		{twin("no slip rule", d, of, func(a adapter, r *fencetest.Resource) {
			advance := r.Advance
			r.Write = func(ctx context.Context, s fence.Stamp, payload string) error {
				if err := advance(ctx, s); err != nil {
					return err
				}
				return a.write(ctx, s, payload)
			}
		}), []fencetest.Promise{fencetest.SlipRefused}},
		{twin("acknowledged before the commit", d, of, func(a adapter, r *fencetest.Resource) {
			r.Write = func(ctx context.Context, s fence.Stamp, payload string) error {
				m, err := a.dialect.ReadMark(ctx, a.db, a.resource)
				if err != nil {
					return err
				}
				if _, err := m.Admit(s); err != nil {
					return err
				}
				time.AfterFunc(5*time.Millisecond, func() { _ = a.write(context.WithoutCancel(ctx), s, payload) })
				return nil
			}
		}), []fencetest.Promise{fencetest.KillAnywhere}},
		{twin("strict in two transactions", d, of, func(a adapter, r *fencetest.Resource) {
			r.WriteStrict = func(ctx context.Context, s fence.Stamp, digest, payload string) (answer string, err error) {
				var verdict fence.Verdict
				err = a.tx(ctx, func(tx *sql.Tx) (err error) {
					verdict, _, err = a.dialect.GuardStrict(ctx, tx, a.resource, s, digest)
					return err
				})
				if err != nil || verdict == fence.Retry {
					return "made", err
				}
				fencetest.Between(ctx)
				return "made", a.tx(ctx, func(tx *sql.Tx) error { return a.effect(ctx, tx, payload) })
			}
		}), []fencetest.Promise{fencetest.StrictKilled}},
		{twin("strict without a stored answer", d, of, func(a adapter, r *fencetest.Resource) {
			r.WriteStrict = func(ctx context.Context, s fence.Stamp, digest, payload string) (answer string, err error) {
				err = a.tx(ctx, func(tx *sql.Tx) error {
					verdict, _, err := a.dialect.GuardStrict(ctx, tx, a.resource, s, digest)
					if err != nil || verdict == fence.Retry {
						return err
					}
					return a.effect(ctx, tx, payload)
				})
				return fmt.Sprintf("made at %s", time.Now()), err
			}
		}), []fencetest.Promise{fencetest.StrictRetry, fencetest.StrictSurvives}},
	}
}

func TestMain(m *testing.M) {
	all := []fencetest.Sink{postgres(nil), postgresPgx(nil), sqlite(), holding(sqlfence.Postgres, postgres(nil)), holding(sqlfence.SQLite, sqlite()), forgetful(sqlfence.SQLite, sqlite())}
	all = append(all, maria(nil), mariaInside(nil, "", ""), holding(sqlfence.MySQL, maria(nil)))
	for _, b := range slices.Concat(twins(sqlfence.Postgres, postgres(nil)), twins(sqlfence.SQLite, sqlite()), twins(sqlfence.MySQL, maria(nil))) {
		all = append(all, b.sink)
	}
	for _, level := range levels() {
		all = append(all, postgresQueue(nil, level), postgresInside(nil, level))
	}
	fencetest.Child(append(all, postgresOneBatch(nil), looksFirst(nil), looksInside(nil))...)
	os.Exit(m.Run())
}
