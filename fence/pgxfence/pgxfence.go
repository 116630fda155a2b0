package pgxfence

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/sqlfence"
)

// Querier reads: a *pgx.Conn, a *pgxpool.Pool or a pgx.Tx.
type Querier interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
}

// DB begins transactions: a *pgx.Conn or a *pgxpool.Pool.
type DB interface {
	Querier
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

type runner struct{ q Querier }

func (r runner) QueryRow(ctx context.Context, query string, args ...any) sqlfence.Row {
	return r.q.QueryRow(ctx, query, args...)
}

func (r runner) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := r.q.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func on(q Querier) sqlfence.Bound { return sqlfence.Postgres.On(runner{q}) }

// Queue puts the guard into a batch, before the writes that it guards, so that it needs no
// round trip of its own. If the stamp is refused, the statements after it do not run, the
// transaction is aborted, and Close of the results returns the refusal.
//
// The batch may be sent in a transaction. Sent on a connection or a pool it is a transaction
// of its own in a single round trip, which is faster than an unfenced transaction with three:
//
//	batch := &pgx.Batch{}
//	err := pgxfence.Queue(batch, "invoices", term.Stamp())
//	…
//	batch.Queue("UPDATE …")
//	err = pool.SendBatch(ctx, batch).Close()
//
// The guard is two statements. A caller that reads the results one by one must skip two
// results before those of its writes, and convert errors with Refusal.
func Queue(b *pgx.Batch, resource string, s fence.Stamp) error {
	if err := sqlfence.Validate(resource, s); err != nil {
		return err
	}
	b.Queue(queueLock, resource, int64(s.Token))
	q := b.Queue(queueLook, resource, s.Deployment, s.Group, int64(s.Token), s.Session)
	q.Fn = func(br pgx.BatchResults) error {
		_, err := br.Exec()
		return Refusal(resource, s, err)
	}
	return nil
}

// Inside is sqlfence.Dialect.Inside: the guard as a condition of the statement that writes. The
// statement may be in a batch, or be a transaction of its own. Convert its error with Refusal.
func Inside(resource string, s fence.Stamp, args ...any) (condition string, all []any, err error) {
	return sqlfence.Postgres.Inside(resource, s, args...)
}

// Refusal returns the refusal, or sqlfence.ErrUnsealed, if err is the error that tenure_guard or
// tenure_inside raised for this resource and stamp, and otherwise err.
func Refusal(resource string, s fence.Stamp, err error) error {
	var raised *pgconn.PgError
	if errors.As(err, &raised) {
		if refused := sqlfence.Refusal(resource, s, raised.Code, raised.Detail); refused != nil {
			return refused
		}
	}
	return err
}

// In a batch the guard is two statements, which costs half of a function that runs two: the
// lock, and then, with a snapshot taken after it, the comparison. All other cases (another
// token, no mark, one snapshot for the whole transaction) are left to tenure_guard, which
// begins with the same lock.
const (
	queueLock = "SELECT pg_advisory_xact_lock_shared(tenure_lock_key($1, $2))"
	queueLook = `SELECT coalesce(
		CASE WHEN current_setting('transaction_isolation') = 'read committed' THEN
			(SELECT token FROM tenure_mark WHERE resource = $1 AND deployment = $2 AND grp = $3 AND token = $4 AND ($5 = '' OR session = $5))
		END, tenure_guard($1, $2, $3, $4, $5))`
)

// Guard is sqlfence.Dialect.Guard.
func Guard(ctx context.Context, tx pgx.Tx, resource string, s fence.Stamp) error {
	return on(tx).Guard(ctx, resource, s)
}

// GuardStrict is sqlfence.Dialect.GuardStrict.
func GuardStrict(ctx context.Context, tx pgx.Tx, resource string, s fence.Stamp, digest string) (fence.Verdict, []byte, error) {
	return on(tx).GuardStrict(ctx, resource, s, digest)
}

// Answer is sqlfence.Dialect.Answer.
func Answer(ctx context.Context, tx pgx.Tx, resource string, s fence.Stamp, answer []byte) error {
	return on(tx).Answer(ctx, resource, s, answer)
}

// Once is sqlfence.Dialect.Once.
func Once(ctx context.Context, tx pgx.Tx, resource string, s fence.Stamp, key string, step func(context.Context) ([]byte, error)) (result []byte, again bool, err error) {
	return on(tx).Once(ctx, resource, s, key, step)
}

// ReadMark is sqlfence.Dialect.ReadMark.
func ReadMark(ctx context.Context, q Querier, resource string) (fence.Mark, error) {
	return on(q).ReadMark(ctx, resource)
}

// Migrate installs the tables and functions. It may be run concurrently and repeatedly.
func Migrate(ctx context.Context, db DB) error {
	err := within(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", sqlfence.MigrationLock); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlfence.Postgres.Migration())
		return err
	})
	if err != nil {
		return fmt.Errorf("pgxfence: migrate: %w", err)
	}
	return nil
}

// Sink is a resource of a database, for operations outside the transactions of writers. It is
// a fence.Sealer.
type Sink struct {
	db       DB
	resource string
}

// NewSink names a resource of db.
func NewSink(db DB, resource string) *Sink { return &Sink{db: db, resource: resource} }

// Seal raises the mark to the stamp's token, after transactions that were admitted with older
// tokens have ended.
func (k *Sink) Seal(ctx context.Context, s fence.Stamp) error {
	return k.alone(ctx, func(b sqlfence.Bound) error { return b.Guard(ctx, k.resource, s) })
}

// Advance raises the mark to any token, past the slip rule. It never lowers it.
func (k *Sink) Advance(ctx context.Context, s fence.Stamp) error {
	return k.alone(ctx, func(b sqlfence.Bound) error { return b.Advance(ctx, k.resource, s) })
}

// Mark returns the mark.
func (k *Sink) Mark(ctx context.Context) (fence.Mark, error) { return ReadMark(ctx, k.db, k.resource) }

func (k *Sink) alone(ctx context.Context, f func(sqlfence.Bound) error) error {
	once := func() error { return within(ctx, k.db, func(tx pgx.Tx) error { return f(on(tx)) }) }
	err := once()
	// These transactions do nothing else, so they can be retried here.
	for sqlfence.Repeatable(err) && ctx.Err() == nil {
		err = once()
	}
	if err != nil && !errors.Is(err, fence.ErrRefused) {
		return fmt.Errorf("pgxfence: resource %q: %w", k.resource, err)
	}
	return err
}

// within runs f in a read-committed transaction, which sees the state at the time when it
// gets the lock, whatever the default of the database.
func within(ctx context.Context, db DB, f func(pgx.Tx) error) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		// Clean-up runs although ctx may have ended; pgx closes a connection on
		// which it fails.
		_ = tx.Rollback(context.WithoutCancel(ctx))
		return err
	}
	return tx.Commit(ctx)
}
