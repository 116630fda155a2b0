package sqlfence

import (
	"context"
	"crypto/sha256"
	"database/sql"
	_ "embed" // the migration
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tenurehq/tenure/fence"
)

//go:embed mysql.sql
var mysqlText string

// The lock on a mark is InnoDB's lock on its row: writers share it, and a new leader takes it
// alone. A locking read returns the newest row whatever the isolation level. InnoDB queues the
// locks of a row in order, so a new leader gets its turn although an old one does not stop.
const (
	mysqlMark  = "SELECT deployment, grp, token, seq, digest, session FROM tenure_mark WHERE resource = ?"
	mysqlShare = " LOCK IN SHARE MODE"
	mysqlAlone = " FOR UPDATE"
)

// admitMySQL applies the rule under the shared lock, in one round trip. Only if the mark must
// change it takes the lock alone and applies the rule again. A seal takes it alone at once.
func (b Bound) admitMySQL(ctx context.Context, resource string, s fence.Stamp, a admission) error {
	lock := b.upgradeMySQL
	if a.alone {
		lock = func(ctx context.Context, r string) (fence.Mark, error) { return b.lockMySQL(ctx, r) }
	} else {
		m, err := b.scanMark(b.run.QueryRow(ctx, mysqlMark+mysqlShare, resource))
		if err != nil {
			return err
		}
		if next, err := a.rule(m, s); err != nil || next == m {
			return err
		}
	}
	m, err := lock(ctx, resource)
	if err != nil {
		return err
	}
	next, err := a.rule(m, s)
	if err != nil {
		return err
	}
	return b.store(ctx, resource, m, next)
}

// upgradeMySQL takes the lock alone for a transaction that shares it. Two such transactions would
// wait for each other, so only the one that has the gate may try. The other must give its share
// back, and its repetition queues behind the first.
func (b Bound) upgradeMySQL(ctx context.Context, resource string) (m fence.Mark, err error) {
	sum := sha256.Sum256([]byte(resource))
	gate := "tenure:" + hex.EncodeToString(sum[:16])
	var got sql.NullInt64
	if err := b.run.QueryRow(ctx, "SELECT GET_LOCK(?, 0)", gate).Scan(&got); err != nil {
		return m, err
	}
	if got.Int64 != 1 {
		return m, errRaised{}
	}
	m, err = b.lockMySQL(ctx, resource)
	left := b.run.QueryRow(context.WithoutCancel(ctx), "SELECT RELEASE_LOCK(?)", gate).Scan(&got)
	return m, errors.Join(err, left)
}

// errRaised: another transaction raises the mark. It is Repeatable.
type errRaised struct{}

func (errRaised) Error() string    { return "the mark is being raised by another transaction: try again" }
func (errRaised) SQLState() string { return "40001" }

// lockMySQL takes the locks of marks alone, in the order of the names, and makes rows that are
// missing: there is nothing else to lock. It returns the mark of the last one.
func (b Bound) lockMySQL(ctx context.Context, resources ...string) (fence.Mark, error) {
	rows := strings.Repeat("(?), ", len(resources)-1) + "(?)"
	if _, err := b.run.Exec(ctx, "INSERT INTO tenure_mark (resource) VALUES "+rows+" ON DUPLICATE KEY UPDATE tenure_mark.resource = tenure_mark.resource", anys(resources)...); err != nil {
		return fence.Mark{}, err
	}
	return b.scanMark(b.run.QueryRow(ctx, mysqlMark+mysqlAlone, resources[len(resources)-1]))
}

// mysqlInside is 1 under the shared lock if the mark is the token's, and otherwise an error: a
// subquery with two rows. A false condition would skip the write without an error.
const mysqlInside = `COALESCE((SELECT 1 FROM tenure_mark WHERE resource = ? AND deployment = ? AND grp = ? AND token = ? AND (? = '' OR session = ?) LOCK IN SHARE MODE),
	(SELECT 1 UNION SELECT 2))`

// WhyRefused converts the error of a statement with the guard inside, in the same transaction, on
// MySQL: to the refusal, or to ErrUnsealed. It returns any other error as it is. Roll back in any
// case.
func (d Dialect) WhyRefused(ctx context.Context, tx Tx, resource string, s fence.Stamp, err error) error {
	if d != MySQL || mysqlCode(err) != mysqlTwoRows {
		return err
	}
	b := d.On(standard{tx})
	m, err := b.scanMark(b.run.QueryRow(ctx, mysqlMark+mysqlShare, resource))
	if err == nil {
		_, err = m.Admit(s)
	}
	if err == nil {
		err = ErrUnsealed
	}
	return wrap(resource, err)
}

// heldMySQL is the query for the marks that Hold has locked.
func heldMySQL(resources []string) (query string, args []any) {
	text := func(column string) string { return "CONVERT(" + column + " USING utf8mb4)" }
	return "SELECT JSON_ARRAYAGG(JSON_OBJECT('resource', " + text("resource") + ", 'deployment', " + text("deployment") + ", 'group', " + text("grp") +
		", 'token', token, 'seq', seq, 'digest', " + text("digest") + ", 'session', " + text("session") + ", 'answer', COALESCE(HEX(answer), ''))) FROM tenure_mark WHERE resource IN (?" +
		strings.Repeat(", ?", len(resources)-1) + ")" + mysqlAlone, anys(resources)
}

// storeMarksMySQL upserts rows of columns; every row is there already, since Hold makes it.
func storeMarksMySQL(rows [][]any) (query string, args []any) {
	query = "INSERT INTO tenure_mark (resource, deployment, grp, token, seq, digest, session, answer) VALUES " +
		strings.Repeat("(?, ?, ?, ?, ?, ?, ?, UNHEX(?)), ", len(rows)-1) + "(?, ?, ?, ?, ?, ?, ?, UNHEX(?))" +
		" ON DUPLICATE KEY UPDATE deployment = VALUES(deployment), grp = VALUES(grp), token = VALUES(token), seq = VALUES(seq), digest = VALUES(digest), session = VALUES(session), answer = VALUES(answer)"
	for _, r := range rows {
		args = append(args, r...)
	}
	return query, args
}

func anys(of []string) (all []any) {
	for _, v := range of {
		all = append(all, v)
	}
	return all
}

// What the columns of MySQL can hold, in bytes. A server without strict mode would cut the rest
// off.
const (
	mysqlName   = 255
	mysqlDigest = 1024
)

func (b Bound) fits(most int, field string, values ...string) error {
	if b.dialect == MySQL && slices.ContainsFunc(values, func(v string) bool { return len(v) > most }) {
		return &fence.InvalidError{Field: field, Rule: fmt.Sprintf("at most %d bytes on MySQL", most)}
	}
	return nil
}

// mysqlCode returns the number of an error of the server, 0 if it is none. The drivers have no
// type in common, but they all begin with the number: "Error 1213 (40001): Deadlock found …".
func mysqlCode(err error) (code int) {
	if err == nil {
		return 0
	}
	if n, _ := fmt.Sscanf(strings.ToLower(err.Error()), "error %d", &code); n == 1 {
		return code
	}
	switch e := err.(type) { //nolint:errorlint // this walks the tree itself
	case interface{ Unwrap() error }:
		return mysqlCode(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			if code = mysqlCode(one); code != 0 {
				return code
			}
		}
	}
	return 0
}

// Error numbers of MySQL and MariaDB.
const (
	mysqlChanged   = 1020 // the row has changed since the snapshot (MariaDB)
	mysqlDuplicate = 1062
	mysqlTimeout   = 1205
	mysqlDeadlock  = 1213
	mysqlTwoRows   = 1242 // in a subquery that may have one
)
