package history

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // PostgreSQL
	_ "modernc.org/sqlite"             // SQLite
)

// LagQuery finds what the ledger must not have: an allocation that does not follow the
// one before it, or has a smaller token. Its parameters are resource and sequence.
const LagQuery = `SELECT n, first_seq, last_seq, token, last_before, token_before FROM (
	SELECT n, first_seq, last_seq, token,
		lag(last_seq) OVER (ORDER BY n) AS last_before,
		lag(token) OVER (ORDER BY n) AS token_before
	FROM allocation WHERE resource = $1 AND name = $2
) AS allocations
WHERE last_seq < first_seq OR first_seq <= last_before OR token < token_before
ORDER BY n`

// Open opens a ledger's database: the path of a SQLite file, which a ledger may be using
// if it is only read, or a postgres:// URL.
func Open(db string, readOnly bool) (*sql.DB, error) {
	if strings.HasPrefix(db, "postgres://") || strings.HasPrefix(db, "postgresql://") {
		return sql.Open("pgx", db)
	}
	path, err := filepath.Abs(db)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	mode := "rw"
	if readOnly {
		mode = "ro"
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: "mode=" + mode + "&_pragma=busy_timeout(10000)"}
	return sql.Open("sqlite", u.String())
}

// CheckLedger asks the ledger's own table, and, if calls are given (in the order that
// Check leaves them in), whether each of them lies in one allocation of its token.
func CheckLedger(ctx context.Context, db *sql.DB, resource, name string, calls []Call) (Result, error) {
	var r Result
	if err := r.lag(ctx, db, resource, name); err != nil {
		return r, fmt.Errorf("history: the ledger's allocations cannot be read: %w", err)
	}
	rows, err := db.QueryContext(ctx, "SELECT first_seq, last_seq, token FROM allocation WHERE resource = $1 AND name = $2 ORDER BY first_seq, n", resource, name)
	if err != nil {
		return r, fmt.Errorf("history: the ledger's allocations cannot be read: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var token uint64
	for rows.Next() {
		var a Call
		if err := rows.Scan(&a.First, &a.Last, &a.Token); err != nil {
			return r, err
		}
		if r.Calls == 0 {
			r.First = a.First
			for len(calls) > 0 && calls[0].First < a.First {
				calls = calls[1:] // older than what the ledger keeps
			}
		}
		r.Calls++
		r.IDs += a.Last - a.First + 1
		r.Last = max(r.Last, a.Last)
		if a.Token != token {
			r.Tokens++
			token = a.Token
		}
		for len(calls) > 0 && calls[0].First <= a.Last {
			if c := calls[0]; c.First < a.First || c.Last > a.Last || c.Token != a.Token {
				r.breach("a caller has %d to %d under token %d, the ledger gave %d to %d under %d", c.First, c.Last, c.Token, a.First, a.Last, a.Token)
			}
			calls = calls[1:]
		}
	}
	if err := rows.Err(); err != nil {
		return r, err
	}
	for _, c := range calls {
		r.breach("a caller has %d to %d under token %d, and the ledger knows nothing of it", c.First, c.Last, c.Token)
	}
	return r, nil
}

func (r *Result) lag(ctx context.Context, db *sql.DB, resource, name string) error {
	rows, err := db.QueryContext(ctx, LagQuery, resource, name)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var n, first, last, token uint64
		var lastBefore, tokenBefore sql.NullInt64
		if err := rows.Scan(&n, &first, &last, &token, &lastBefore, &tokenBefore); err != nil {
			return err
		}
		r.breach("allocation %d is %d to %d under token %d, after %d under token %d", n, first, last, token, lastBefore.Int64, tokenBefore.Int64)
	}
	return rows.Err()
}
