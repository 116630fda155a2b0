package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tenurehq/tenure/fence"
)

// errBad makes database/sql discard a connection.
var errBad = driver.ErrBadConn

// Bound is a dialect on one transaction. Its methods are those of Dialect.
type Bound struct {
	dialect Dialect
	run     Runner
}

// On binds the dialect to a transaction of a driver other than database/sql.
func (d Dialect) On(r Runner) Bound { return Bound{dialect: d, run: r} }

// Guard is Dialect.Guard.
func (b Bound) Guard(ctx context.Context, resource string, s fence.Stamp) error {
	return b.admit(ctx, resource, s, admission{function: "tenure_admit", rule: fence.Mark.Admit})
}

// Advance raises the mark to any token, never lowers it, and like Guard locks it until the
// transaction ends.
func (b Bound) Advance(ctx context.Context, resource string, s fence.Stamp) error {
	return b.admit(ctx, resource, s, admission{function: "tenure_advance", rule: fence.Mark.Advance, alone: true})
}

// admission is one way to change a mark: by a function of the database or, if the database is
// in the process, by the rule itself.
type admission struct {
	function string
	rule     func(fence.Mark, fence.Stamp) (fence.Mark, error)
	alone    bool // no write follows, so the lock need not be shared
}

func (b Bound) admit(ctx context.Context, resource string, s fence.Stamp, a admission) error {
	if err := b.check(resource, s); err != nil {
		return wrap(resource, err)
	}
	if err := b.inTx(); err != nil {
		return err
	}
	switch b.dialect {
	case Postgres:
		var said string
		args := []any{resource, s.Deployment, s.Group, int64(s.Token), s.Session}
		row := b.run.QueryRow(ctx, "SELECT "+a.function+"($1, $2, $3, $4, $5)", args...)
		if err := row.Scan(&said); err != nil {
			return wrap(resource, outdated(err))
		}
		return wrap(resource, refusal(said, s, ""))
	case SQLite:
		m, err := b.lockRow(ctx, resource)
		if err != nil {
			return wrap(resource, err)
		}
		next, err := a.rule(m, s)
		if err != nil {
			return wrap(resource, err)
		}
		return wrap(resource, b.store(ctx, resource, m, next))
	case MySQL:
		return wrap(resource, b.admitMySQL(ctx, resource, s, a))
	}
	return fmt.Errorf("sqlfence: no dialect: %s", b.dialect)
}

// GuardStrict is Dialect.GuardStrict.
func (b Bound) GuardStrict(ctx context.Context, resource string, s fence.Stamp, digest string) (fence.Verdict, []byte, error) {
	if err := errors.Join(b.check(resource, s), text("digest", digest), b.fits(mysqlDigest, "digest", digest)); err != nil {
		return 0, nil, wrap(resource, err)
	}
	if s.Seq == 0 {
		return 0, nil, wrap(resource, &fence.InvalidError{Field: "seq", Value: "0", Rule: "strict writes count from 1"})
	}
	if err := b.inTx(); err != nil {
		return 0, nil, err
	}
	switch b.dialect {
	case Postgres:
		var said string
		var answer []byte
		row := b.run.QueryRow(ctx, "SELECT said, stored FROM tenure_admit_strict($1, $2, $3, $4, $5, $6, $7)",
			resource, s.Deployment, s.Group, int64(s.Token), int64(s.Seq), digest, s.Session)
		if err := row.Scan(&said, &answer); err != nil {
			return 0, nil, wrap(resource, outdated(err))
		}
		if said == "retry" {
			return fence.Retry, answer, nil
		}
		if err := refusal(said, s, digest); err != nil {
			return 0, nil, wrap(resource, err)
		}
		return fence.Apply, nil, nil
	case SQLite:
		return b.strict(ctx, b.lockRow, resource, s, digest)
	case MySQL:
		return b.strict(ctx, func(ctx context.Context, r string) (fence.Mark, error) { return b.lockMySQL(ctx, r) }, resource, s, digest)
	}
	return 0, nil, fmt.Errorf("sqlfence: no dialect: %s", b.dialect)
}

// strict applies the strict rule under a lock that nobody shares.
func (b Bound) strict(ctx context.Context, lock func(context.Context, string) (fence.Mark, error), resource string, s fence.Stamp, digest string) (fence.Verdict, []byte, error) {
	m, err := lock(ctx, resource)
	if err != nil {
		return 0, nil, wrap(resource, err)
	}
	next, verdict, err := m.AdmitStrict(s, digest)
	if err != nil {
		return 0, nil, wrap(resource, err)
	}
	if verdict == fence.Apply {
		return verdict, nil, wrap(resource, b.store(ctx, resource, m, next))
	}
	var answer []byte
	err = b.run.QueryRow(ctx, b.sql("SELECT answer FROM tenure_mark WHERE resource = $1"), resource).Scan(&answer)
	return verdict, answer, wrap(resource, err)
}

// Answer is Dialect.Answer.
func (b Bound) Answer(ctx context.Context, resource string, s fence.Stamp, answer []byte) error {
	if err := b.inTx(); err != nil {
		return err
	}
	n, err := b.run.Exec(ctx, b.sql("UPDATE tenure_mark SET answer = $1 WHERE resource = $2 AND token = $3 AND seq = $4"),
		notNil(answer), resource, int64(s.Token), int64(s.Seq))
	if err == nil && n != 1 {
		err = fmt.Errorf("%s is not the write that was admitted last: its answer is not stored", s)
	}
	return wrap(resource, err)
}

// Once is Dialect.Once.
func (b Bound) Once(ctx context.Context, resource string, s fence.Stamp, key string, step func(context.Context) ([]byte, error)) (result []byte, again bool, err error) {
	if key == "" {
		return nil, false, wrap(resource, &fence.InvalidError{Field: "key", Rule: "must not be empty: it says which step this is"})
	}
	if err := errors.Join(text("key", key), b.fits(mysqlName, "key", key)); err != nil {
		return nil, false, wrap(resource, err)
	}
	if err := b.Guard(ctx, resource, s); err != nil {
		return nil, false, err
	}
	// The transaction that inserts the key makes the step. Others wait here until it has ended. A
	// row without a result means that the step was not made.
	n, err := b.run.Exec(ctx, b.sql("INSERT INTO tenure_once (resource, key, token) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"),
		resource, key, int64(s.Token))
	if b.dialect == MySQL && mysqlCode(err) == mysqlDuplicate {
		n, err = 0, nil
	}
	if err != nil {
		return nil, false, wrap(resource, err)
	}
	if n == 0 {
		var made bool
		query := b.sql("SELECT result IS NOT NULL, result FROM tenure_once WHERE resource = $1 AND key = $2")
		if b.dialect == MySQL {
			query += mysqlShare // the snapshot may be older than the result
		}
		row := b.run.QueryRow(ctx, query, resource, key)
		err := row.Scan(&made, &result)
		if err == nil && !made {
			err = fmt.Errorf("step %q was begun and not made: by this transaction, or by one that was committed although the step had not returned; see what is there of it, and delete its row of tenure_once", key)
		}
		if err != nil {
			return nil, false, wrap(resource, err)
		}
		return result, true, nil
	}
	result, err = step(ctx)
	if err != nil {
		// The caller may commit all the same, so remove the row: the step was not made. If the
		// transaction has failed already, so has the row.
		_, left := b.run.Exec(context.WithoutCancel(ctx), b.sql("DELETE FROM tenure_once WHERE resource = $1 AND key = $2"), resource, key)
		return nil, false, errors.Join(err, left)
	}
	result = notNil(result)
	n, err = b.run.Exec(ctx, b.sql("UPDATE tenure_once SET result = $1 WHERE resource = $2 AND key = $3"), result, resource, key)
	if err == nil && n != 1 {
		err = fmt.Errorf("step %q has lost its row: its result is not stored", key)
	}
	return result, false, wrap(resource, err)
}

// Key encodes the parts of a step's identity, such as a period and an account, as one key.
// Different parts make different keys.
func Key(parts ...string) string {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte('/')
		}
		b.WriteString(strings.NewReplacer(`\`, `\\`, `/`, `\/`).Replace(p))
	}
	return b.String()
}

// ReadMark is Dialect.ReadMark.
func (b Bound) ReadMark(ctx context.Context, resource string) (fence.Mark, error) {
	m, err := b.read(ctx, resource)
	return m, wrap(resource, err)
}

func (b Bound) read(ctx context.Context, resource string) (m fence.Mark, err error) {
	return b.scanMark(b.run.QueryRow(ctx, b.sql("SELECT deployment, grp, token, seq, digest, session FROM tenure_mark WHERE resource = $1"), resource))
}

func (b Bound) scanMark(row Row) (m fence.Mark, err error) {
	var token, seq int64
	err = row.Scan(&m.Deployment, &m.Group, &token, &seq, &m.Digest, &m.Session)
	if errors.Is(err, sql.ErrNoRows) {
		return fence.Mark{}, nil
	}
	m.Token, m.Seq = fence.Token(token), uint64(seq)
	return m, outdated(err)
}

// lockRow takes SQLite's write lock, by a write that changes nothing, and reads the
// mark under it. A transaction that has read an older state fails as busy.
func (b Bound) lockRow(ctx context.Context, resource string) (fence.Mark, error) {
	if err := b.lockDatabase(ctx); err != nil {
		return fence.Mark{}, err
	}
	return b.read(ctx, resource)
}

func (b Bound) lockDatabase(ctx context.Context) error {
	_, err := b.run.Exec(ctx, "UPDATE tenure_mark SET token = token WHERE 0")
	return err
}

func (b Bound) store(ctx context.Context, resource string, m, next fence.Mark) error {
	if m == next {
		return nil
	}
	// Adding the session is not a new write, so the answer to the last one stays.
	if b.dialect == MySQL {
		_, err := b.run.Exec(ctx, `UPDATE tenure_mark SET answer = IF(token = ? AND seq = ?, answer, NULL),
			deployment = ?, grp = ?, token = ?, seq = ?, digest = ?, session = ? WHERE resource = ?`, // in this order: MySQL assigns from left to right
			int64(next.Token), int64(next.Seq), next.Deployment, next.Group, int64(next.Token), int64(next.Seq), next.Digest, next.Session, resource)
		return err
	}
	_, err := b.run.Exec(ctx, `INSERT INTO tenure_mark (resource, deployment, grp, token, seq, digest, session) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
		ON CONFLICT (resource) DO UPDATE SET token = excluded.token, seq = excluded.seq, digest = excluded.digest, session = excluded.session,
		answer = CASE WHEN token = excluded.token AND seq = excluded.seq THEN answer END`,
		resource, next.Deployment, next.Group, int64(next.Token), int64(next.Seq), next.Digest, next.Session)
	return err
}

// sql rewrites a statement of PostgreSQL for the dialect.
func (b Bound) sql(query string) string {
	switch b.dialect {
	case SQLite:
		return strings.ReplaceAll(query, "$", "?")
	case MySQL:
		return forMySQL.Replace(query)
	}
	return query
}

// forMySQL relies on queries that use their parameters in order. A duplicate is an error of MySQL.
var forMySQL = strings.NewReplacer("$1", "?", "$2", "?", "$3", "?", "$4", "?", " ON CONFLICT DO NOTHING", "",
	", key,", ", `key`,", "key = $2", "`key` = ?", "key = $3", "`key` = ?")

func (b Bound) inTx() error {
	if s, ok := b.run.(standard); ok {
		return inTx(s.tx)
	}
	return nil
}

// refusal decodes the result of the PostgreSQL functions: a word, or the verdict and the mark
// that it was based on.
func refusal(said string, s fence.Stamp, digest string) error {
	if said == "ok" || said == "apply" {
		return nil
	}
	var v struct {
		Verdict    string  `json:"verdict"`
		Deployment *string `json:"deployment"`
		Group      *string `json:"group"`
		Token      *uint64 `json:"token"`
		Seq        *uint64 `json:"seq"`
		Digest     *string `json:"digest"`
		Session    string  `json:"session"`
	}
	if err := json.Unmarshal([]byte(said), &v); err != nil {
		return fmt.Errorf("the database answers %.60q: it has functions of another version", said)
	}
	var m fence.Mark
	if v.Token != nil && v.Deployment != nil && v.Group != nil && v.Seq != nil && v.Digest != nil {
		m = fence.Mark{Deployment: *v.Deployment, Group: *v.Group, Token: fence.Token(*v.Token), Seq: *v.Seq, Digest: *v.Digest, Session: v.Session}
	}
	switch v.Verdict {
	case "stale":
		return &fence.StaleError{Stamp: s, Mark: m}
	case "slip":
		return &fence.SlipError{Stamp: s, Mark: m}
	case "foreign":
		return &fence.ForeignError{Stamp: s, Mark: m}
	case "clone":
		return &fence.CloneError{Stamp: s, Digest: digest, Mark: m}
	case "invalid":
		return &fence.InvalidError{Field: "stamp", Value: s.String(), Rule: "the database refuses it"}
	}
	return fmt.Errorf("the database answers %.60q: it has functions of another version", said)
}

// outdated adds the remedy if the database has tables or functions of an older version of
// this package.
func outdated(err error) error {
	if err == nil {
		return nil
	}
	var coded interface{ SQLState() string }
	missing := errors.As(err, &coded) && (coded.SQLState() == "42883" || coded.SQLState() == "42703")
	if missing || strings.Contains(err.Error(), "no such column: session") {
		return fmt.Errorf("the database has an older version of the fence: run Migrate (or the text of Migration): %w", err)
	}
	return err
}

// ErrUnsealed: a statement with the guard inside was not executed, because the mark is below its
// token. Call Guard or Seal, and repeat the transaction.
var ErrUnsealed = errors.New("the mark is below the token: seal before the first write")

// Refusal converts the error that tenure_guard or tenure_inside raised, given by its SQLSTATE
// and detail, into a refusal or ErrUnsealed. It returns nil for any other error.
func Refusal(resource string, s fence.Stamp, sqlstate, detail string) error {
	if len(sqlstate) != 5 || !strings.HasPrefix(sqlstate, "TN0") {
		return nil
	}
	if sqlstate == "TN006" {
		return wrap(resource, ErrUnsealed)
	}
	return wrap(resource, refusal(detail, s, ""))
}

// Inside returns the guard as a condition for the statement that writes (PostgreSQL, MySQL), and
// the arguments of the statement with those of the guard after them. This costs no round trip:
//
//	guard, args, err := sqlfence.Postgres.Inside("invoices", term.Stamp(), amount, id)
//	…
//	_, err = tx.ExecContext(ctx, "UPDATE accounts SET amount = $1 WHERE id = $2 AND "+guard, args...)
//
// Put it last in the statement, which must be able to change a row: a condition that cannot
// matter may be skipped. If the stamp is not admitted, the statement fails and writes nothing. On
// PostgreSQL the transaction is aborted and Refusal converts the error; on MySQL see
// Dialect.WhyRefused.
//
// The guard never raises the mark: seal first, or the error is ErrUnsealed. A statement that was
// sent before the seal has returned may not see the last write of the previous leader.
func (d Dialect) Inside(resource string, s fence.Stamp, args ...any) (condition string, all []any, err error) {
	if err := (Bound{dialect: d}).check(resource, s); err != nil {
		return "", nil, wrap(resource, err)
	}
	n := len(args)
	all = append(slices.Clone(args), resource, s.Deployment, s.Group, int64(s.Token), s.Session)
	switch d {
	case Postgres:
		return fmt.Sprintf("(SELECT tenure_inside($%d, $%d, $%d, $%d, $%d))", n+1, n+2, n+3, n+4, n+5), all, nil
	case MySQL:
		return mysqlInside, append(all, s.Session), nil
	}
	return "", nil, fmt.Errorf("sqlfence: %s has no guard inside a statement: use Guard", d)
}

// Validate refuses values that a database could not store or compare, before a query is sent.
func Validate(resource string, s fence.Stamp) error { return wrap(resource, check(resource, s)) }

func (b Bound) check(resource string, s fence.Stamp) error {
	return errors.Join(check(resource, s), b.fits(mysqlName, "resource, deployment or group", resource, s.Deployment, s.Group))
}

func check(resource string, s fence.Stamp) error {
	if resource == "" {
		return &fence.InvalidError{Field: "resource", Rule: "must not be empty"}
	}
	if err := s.Validate(); err != nil {
		return err
	}
	return errors.Join(text("resource", resource), text("deployment", s.Deployment), text("group", s.Group))
}

func text(field, value string) error {
	if !utf8.ValidString(value) || strings.IndexByte(value, 0) >= 0 {
		return &fence.InvalidError{Field: field, Value: strconv.QuoteToASCII(value[:min(len(value), 32)]), Rule: "UTF-8 without zero bytes"}
	}
	return nil
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func wrap(resource string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("sqlfence: resource %q: %w", resource, err)
}
