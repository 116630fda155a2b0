package database

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"strings"

	"github.com/tenurehq/tenure/fence/sqlfence"
)

// Migrations update a database from one version to the next. Released ones are never changed.
// Words in braces depend on the dialect.
var Migrations = [...][]string{{
	`CREATE TABLE fenced_resource (
		name TEXT PRIMARY KEY, deployment TEXT NOT NULL, grp TEXT NOT NULL, max_token BIGINT NOT NULL, seq BIGINT NOT NULL, digest TEXT NOT NULL, last_tick BIGINT NOT NULL,
		answer TEXT NOT NULL, updated_ms BIGINT NOT NULL){strict}`,
	`CREATE TABLE sequence (
		resource TEXT NOT NULL, name TEXT NOT NULL, last_seq BIGINT NOT NULL, owner_token BIGINT NOT NULL, allocations BIGINT NOT NULL, updated_ms BIGINT NOT NULL,
		PRIMARY KEY (resource, name)){strict}`,
	`CREATE TABLE allocation (
		resource TEXT NOT NULL, name TEXT NOT NULL, n BIGINT NOT NULL, first_seq BIGINT NOT NULL, last_seq BIGINT NOT NULL, token BIGINT NOT NULL, at_ms BIGINT NOT NULL,
		PRIMARY KEY (resource, name, n)){rowless}`,
	`CREATE TABLE tick (
		resource TEXT NOT NULL, n BIGINT NOT NULL, token BIGINT NOT NULL, seq BIGINT NOT NULL, tick_key TEXT NOT NULL, payload TEXT NOT NULL, at_ms BIGINT NOT NULL,
		PRIMARY KEY (resource, n)){strict}`,
	`CREATE UNIQUE INDEX tick_by_key ON tick (resource, tick_key) WHERE tick_key <> ''`,
	`CREATE TABLE checkpoint (
		resource TEXT NOT NULL, name TEXT NOT NULL, version BIGINT NOT NULL, token BIGINT NOT NULL, value TEXT NOT NULL, updated_ms BIGINT NOT NULL, PRIMARY KEY (resource, name)){strict}`,
	`CREATE TABLE record (
		resource TEXT NOT NULL, name TEXT NOT NULL, version BIGINT NOT NULL, token BIGINT NOT NULL, value TEXT NOT NULL, updated_ms BIGINT NOT NULL, PRIMARY KEY (resource, name)){strict}`,
	`CREATE TABLE rejection (
		id BIGINT NOT NULL PRIMARY KEY, resource TEXT NOT NULL, deployment TEXT NOT NULL, grp TEXT NOT NULL, token BIGINT NOT NULL, seq BIGINT NOT NULL, holder TEXT NOT NULL,
		reason TEXT NOT NULL, current_token BIGINT NOT NULL, applied BIGINT NOT NULL, at_ms BIGINT NOT NULL){strict}`,
	`CREATE TABLE ledger_counter (name TEXT PRIMARY KEY, value BIGINT NOT NULL){strict}`,
	`INSERT INTO ledger_counter (name, value) VALUES ('rejections', 0)`,
}, {
	`ALTER TABLE fenced_resource ADD COLUMN jobs BIGINT NOT NULL DEFAULT 0`,
	`ALTER TABLE fenced_resource ADD COLUMN jobs_version BIGINT NOT NULL DEFAULT 0`,
	`ALTER TABLE fenced_resource ADD COLUMN firings BIGINT NOT NULL DEFAULT 0`,
	`ALTER TABLE fenced_resource ADD COLUMN firings_pending BIGINT NOT NULL DEFAULT 0`,
	`CREATE TABLE job (
		resource TEXT NOT NULL, name TEXT NOT NULL, next_ms BIGINT NOT NULL, schedule TEXT NOT NULL, misfire TEXT NOT NULL, payload TEXT NOT NULL, token BIGINT NOT NULL,
		updated_ms BIGINT NOT NULL, PRIMARY KEY (resource, name)){rowless}`,
	`CREATE INDEX job_by_time ON job (resource, next_ms, name)`,
	`CREATE TABLE firing (
		resource TEXT NOT NULL, n BIGINT NOT NULL, job TEXT NOT NULL, at_ms BIGINT NOT NULL, token BIGINT NOT NULL, fired_ms BIGINT NOT NULL, payload TEXT NOT NULL,
		worker TEXT NOT NULL, delivered_ms BIGINT NOT NULL, pending BIGINT NOT NULL, PRIMARY KEY (resource, n)){rowless}`,
	`CREATE UNIQUE INDEX firing_once ON firing (resource, job, at_ms)`,
	`CREATE INDEX firing_by_state ON firing (resource, pending, n)`,
	`CREATE TABLE shared (
		space TEXT NOT NULL, name TEXT NOT NULL, version BIGINT NOT NULL, value TEXT NOT NULL, updated_ms BIGINT NOT NULL, PRIMARY KEY (space, name)){strict}`,
	`INSERT INTO ledger_counter (name, value) VALUES ('shared', 0), ('shared_floor', 0)`,
}, {
	`CREATE TABLE ledger_identity (
		one BIGINT PRIMARY KEY, id TEXT NOT NULL, revision BIGINT NOT NULL, seen BIGINT NOT NULL){strict}`,
	`CREATE TABLE ledger_acceptance (
		replaced TEXT PRIMARY KEY, id TEXT NOT NULL, revision BIGINT NOT NULL, seen BIGINT NOT NULL, holder TEXT NOT NULL, at_ms BIGINT NOT NULL){strict}`,
	// A record from before belongs to the deployment that has written to the resource of the
	// same name: nodes named spaces like that.
	`ALTER TABLE shared RENAME TO shared_before`,
	`CREATE TABLE shared (
		deployment TEXT NOT NULL, space TEXT NOT NULL, name TEXT NOT NULL, version BIGINT NOT NULL, value TEXT NOT NULL, updated_ms BIGINT NOT NULL,
		PRIMARY KEY (deployment, space, name)){strict}`,
	`INSERT INTO shared (deployment, space, name, version, value, updated_ms)
		SELECT COALESCE((SELECT r.deployment FROM fenced_resource r WHERE r.name = b.space), ''), b.space, b.name, b.version, b.value, b.updated_ms FROM shared_before b`,
	`DROP TABLE shared_before`,
}, {
	// session_token is the token that the session was stored with. An older ledger on the same
	// database raises only max_token; then the session is unknown.
	`ALTER TABLE fenced_resource ADD COLUMN session TEXT NOT NULL DEFAULT ''`,
	`ALTER TABLE fenced_resource ADD COLUMN session_token BIGINT NOT NULL DEFAULT 0`,
}, {
	// The marks move to the table of package sqlfence. The columns are dropped so that an older
	// ledger that still runs on the same database fails, instead of using marks that are no
	// longer raised.
	`INSERT INTO tenure_mark (resource, deployment, grp, token, seq, digest, session, answer)
		SELECT name, deployment, grp, max_token, seq, digest, CASE WHEN session_token = max_token THEN session ELSE '' END,
			CASE WHEN answer <> '' THEN {answer} END
		FROM fenced_resource WHERE max_token > 0`,
	`ALTER TABLE fenced_resource DROP COLUMN deployment`,
	`ALTER TABLE fenced_resource DROP COLUMN grp`,
	`ALTER TABLE fenced_resource DROP COLUMN max_token`,
	`ALTER TABLE fenced_resource DROP COLUMN seq`,
	`ALTER TABLE fenced_resource DROP COLUMN digest`,
	`ALTER TABLE fenced_resource DROP COLUMN answer`,
	`ALTER TABLE fenced_resource DROP COLUMN session`,
	`ALTER TABLE fenced_resource DROP COLUMN session_token`,
}}

// SchemaError: a later program, or another one, wrote the database.
type SchemaError struct{ Rule string }

func (e *SchemaError) Error() string { return "ledger: " + e.Rule }

// NewID returns the id of a ledger.
func NewID() string { return "l" + strings.ToLower(rand.Text()[:12]) }

// migrationLock prevents two ledgers from migrating one PostgreSQL at once.
const migrationLock int64 = 7596553796441985139

// migrate updates the database to the version of this program, and refuses a later one.
func (d *DB) migrate(ctx context.Context) error {
	return d.Within(ctx, func(t *Tx) error {
		exec := func(statement string, args ...any) error {
			_, err := t.conn.ExecContext(ctx, Translate(d.Dialect, statement), args...)
			if err != nil {
				return fmt.Errorf("%w in %.60q", err, statement)
			}
			return nil
		}
		if d.Dialect == sqlfence.SQLite {
			if err := ours(ctx, t.conn); err != nil {
				return err
			}
		} else if err := exec("SELECT pg_advisory_xact_lock($1), set_config('tenure.apart', 'on', true)", migrationLock); err != nil {
			return err
		}
		if err := exec("CREATE TABLE IF NOT EXISTS ledger_migration (version BIGINT PRIMARY KEY)"); err != nil {
			return err
		}
		var version int
		if err := t.conn.QueryRowContext(ctx, "SELECT COALESCE(MAX(version), 0) FROM ledger_migration").Scan(&version); err != nil {
			return err
		}
		if version > len(Migrations) {
			return &SchemaError{fmt.Sprintf("the database has schema version %d, and this program knows %d: run the program that wrote it, or a later one", version, len(Migrations))}
		}
		if err := d.Dialect.OnConn(t.conn).Migrate(ctx); err != nil {
			return err
		}
		for ; version < len(Migrations); version++ {
			for _, statement := range Migrations[version] {
				if err := exec(statement); err != nil {
					return err
				}
			}
			if err := exec("INSERT INTO ledger_migration (version) VALUES ($1)", version+1); err != nil {
				return err
			}
		}
		return exec("INSERT INTO ledger_identity (one, id, revision, seen) VALUES (1, $1, 0, 0) ON CONFLICT DO NOTHING", NewID())
	})
}

// ours refuses a file that another program wrote.
func ours(ctx context.Context, c *sql.Conn) error {
	var tables, known int
	err := c.QueryRowContext(ctx, "SELECT COUNT(*), COUNT(*) FILTER (WHERE name = 'ledger_migration') FROM sqlite_master WHERE type = 'table'").Scan(&tables, &known)
	if err == nil && tables > 0 && known == 0 {
		err = &SchemaError{"the file is a database of another program; give the ledger its own file"}
	}
	return err
}

// Translate translates a statement to the dialect: $1 is a parameter, {rows} a table of one
// column e, made of the JSON array that is the first parameter.
func Translate(d sqlfence.Dialect, statement string) string {
	if d == sqlfence.Postgres {
		return postgresWords.Replace(statement)
	}
	return sqliteWords.Replace(statement)
}

var (
	postgresWords = strings.NewReplacer(
		"{rows}", "jsonb_array_elements($1::jsonb) AS rows_of(e)",
		"{lock}", "FOR UPDATE",
		"{answer}", "convert_to(answer, 'UTF8')",
		"{by_state}", "",
		"{strict}", "", "{rowless}", "")
	sqliteWords = strings.NewReplacer(
		"{rows}", "(SELECT value AS e FROM json_each(?1)) AS rows_of",
		"{lock}", "",
		"{answer}", "CAST(answer AS BLOB)",
		// Without statistics SQLite would choose the primary key.
		"{by_state}", "INDEXED BY firing_by_state",
		"{strict}", " STRICT", "{rowless}", " STRICT, WITHOUT ROWID",
		"$", "?", "BIGINT", "INTEGER")
)
