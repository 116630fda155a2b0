package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// Config configures a store in PostgreSQL.
type Config struct {
	// URL of the database, such as "postgres://app@db1,db2/billing". Passwords may come from
	// PGPASSWORD, a PGPASSFILE or the URL. With several hosts the one that accepts writes is
	// used. URL or Pool is required.
	URL string
	// Pool, if set, is used instead of own connections, so that election and fence share it. A
	// watch opens one more connection with its configuration. Close does not close the pool.
	Pool *pgxpool.Pool
	// Schema of the table, the sequence and the procedure. Each deployment needs its own. Lower-case
	// letters, digits and _. Default "tenure_store", which is in no role's default search path.
	Schema string
	// Deployment names a schema that is used for the first time. Default: random. A store
	// that takes the place of another one needs its name, because sinks know it.
	Deployment string
	// MinTTL is the shortest session. It should be ten times a commit. Default 1 s.
	MinTTL time.Duration
}

// SQL is the migration that creates the schema "tenure_store", for a role that may not create it.
//
//go:embed schema.sql
var SQL string

// version of the schema.
const version = 1

const (
	maxTTL = 24 * time.Hour
	// lateness is the time of a slow commit.
	lateness = 100 * time.Millisecond
	// maxKeys bounds the time for which a commit holds its locks.
	maxKeys = 256
	// oldest is the first version of the server with COMMIT AND CHAIN in procedures.
	oldest = 120000
	loses  = "a failover to an asynchronous standby loses the last commits: set synchronous_standby_names"
)

// Store is a store.Store in PostgreSQL.
type Store = kv.Store

var _ store.Store = (*Store)(nil)

// Open connects, creates the schema at first use, and reads the description of the deployment. It
// fails within the context's deadline (5 s if it has none).
func Open(ctx context.Context, cfg Config) (*Store, error) {
	ctx, cancel := kv.Bounded(ctx)
	defer cancel()
	d, err := NewDriver(cfg)
	if err != nil {
		return nil, err
	}
	if err = d.Migrate(ctx); err != nil {
		d.Close()
	} else {
		var s *Store
		if s, err = kv.Open(ctx, d, kv.Config{Deployment: cfg.Deployment}); err == nil {
			return s, nil
		}
	}
	c := d.pool.Config().ConnConfig
	return nil, fmt.Errorf("open database %q on %s:%d as %q: %w", c.Database, c.Host, c.Port, c.User, err)
}

// Caps returns the capabilities of a store with the default configuration.
func Caps() store.Caps {
	return (&Driver{cfg: Config{}.withDefaults(), loses: loses}).Caps().Store()
}

// schemaParameter is a URL parameter of this package, not of PostgreSQL.
const schemaParameter = "tenure_schema"

// Parse reads "postgres://user@host:port,host:port/database?tenure_schema=name". All other
// parameters are those of pgx and libpq, such as sslmode, sslrootcert and pool_max_conns.
func Parse(raw string) (Config, error) {
	base, query, _ := strings.Cut(raw, "?")
	q, err := url.ParseQuery(query)
	if err != nil || !strings.HasPrefix(base, "postgres://") && !strings.HasPrefix(base, "postgresql://") {
		return Config{}, badURL("use postgres://user@host:port/database?parameter=value")
	}
	cfg := Config{Schema: q.Get(schemaParameter)}
	q.Del(schemaParameter)
	cfg.URL = base + "?" + q.Encode()
	return cfg, cfg.withDefaults().validate()
}

// badURL is an error without the URL, which may have a password.
func badURL(rule string) error { return &store.ArgumentError{Field: "PostgreSQL URL", Rule: rule} }

func (c Config) withDefaults() Config {
	if c.Schema == "" {
		c.Schema = "tenure_store"
	}
	if c.MinTTL == 0 {
		c.MinTTL = time.Second
	}
	return c
}

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

func (c Config) validate() error {
	switch {
	case (c.URL == "") == (c.Pool == nil):
		return &store.ArgumentError{Field: "url", Rule: "set URL or Pool"}
	case !schemaName.MatchString(c.Schema):
		return &store.ArgumentError{Field: "schema", Value: c.Schema, Rule: "1 to 63 lower-case letters, digits and _"}
	case c.MinTTL < 100*time.Millisecond || c.MinTTL > maxTTL:
		return &store.ArgumentError{Field: "min ttl", Value: c.MinTTL, Rule: "100ms to 24h"}
	case c.Pool != nil:
		return nil
	}
	_, err := parse(c.URL)
	return err
}

// parse reads the URL for a pool.
func parse(raw string) (*pgxpool.Config, error) {
	pc, err := pgxpool.ParseConfig(raw)
	if err != nil {
		rule := "it is malformed; use postgres://user@host:port/database?parameter=value"
		if cause := errors.Unwrap(err); cause != nil && !strings.ContainsAny(cause.Error(), "@:/") {
			rule = cause.Error()
		}
		return nil, badURL(rule)
	}
	c := pc.ConnConfig
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = probeWithin
	}
	if len(c.Fallbacks) > 0 && c.ValidateConnect == nil {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "tenure"
	}
	return pc, nil
}

// Migrate creates the schema if it is missing, completely or not at all.
func (d *Driver) Migrate(ctx context.Context) error {
	for created := false; ; created = true {
		var server, found int
		var schema, synced, standbys bool
		var comment *string
		err := d.call(ctx, "read the schema's version", true, func(ctx context.Context) error {
			return d.pool.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, to_regnamespace($1) IS NOT NULL,
				obj_description(to_regclass($1 || '.items'), 'pg_class'), current_setting('fsync') = 'on',
				current_setting('synchronous_standby_names') = '' AND EXISTS (SELECT FROM pg_stat_replication)`,
				pgx.QueryExecModeExec, quote(d.cfg.Schema)).Scan(&server, &schema, &comment, &synced, &standbys)
		})
		if err == nil {
			err = checkServer(server)
		}
		if err != nil {
			return err
		}
		switch {
		case !synced:
			d.loses = "fsync is off: a crash of the machine loses the last commits"
		case !standbys:
			d.loses = ""
		}
		if comment != nil {
			_, v, _ := strings.Cut(*comment, "schema version ")
			found, _ = strconv.Atoi(v)
		}
		switch {
		case found > version:
			return fmt.Errorf("postgres: schema %s has version %d, this program knows %d: %w", quote(d.cfg.Schema), found, version, store.ErrNewer)
		case found == version:
			return nil
		case comment != nil || created:
			return &store.ArgumentError{Field: "schema", Value: d.cfg.Schema, Rule: "it has a table items that is not Tenure's; choose another schema"}
		}
		sql := strings.ReplaceAll(SQL, `"tenure_store"`, quote(d.cfg.Schema))
		if schema { // even IF NOT EXISTS needs the right to create one
			sql = strings.Replace(sql, "CREATE SCHEMA IF NOT EXISTS", "-- ", 1)
		}
		err = d.call(ctx, "create schema "+quote(d.cfg.Schema), false, func(ctx context.Context) error {
			_, err := d.pool.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
			return err
		})
		var pg *pgconn.PgError
		// Another process may have created it meanwhile.
		if err != nil && !(errors.As(err, &pg) && (pg.Code == "42P07" || pg.Code == "42P06" || pg.Code == "23505")) {
			return err
		}
	}
}

// checkServer refuses a server that is too old.
func checkServer(version int) error {
	if version < oldest {
		return &store.ArgumentError{Field: "server version", Value: version / 10000, Rule: fmt.Sprintf("PostgreSQL %d or newer is needed", oldest/10000)}
	}
	return nil
}
