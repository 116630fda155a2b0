package ledger

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

func (d *database) openPostgres(cfg Config) error {
	pg, err := pgx.ParseConfig(cfg.DB)
	if err != nil {
		return &ConfigError{Field: "db", Rule: "not a PostgreSQL URL: " + err.Error()}
	}
	// A ledger that has vanished must not keep its locks.
	pg.RuntimeParams["idle_in_transaction_session_timeout"] = fmt.Sprint(cfg.Timeout.Milliseconds())
	if _, given := pg.RuntimeParams["application_name"]; !given {
		pg.RuntimeParams["application_name"] = "tenure ledger"
	}
	if pg.ConnectTimeout == 0 {
		pg.ConnectTimeout = cfg.Timeout
	}
	connector := stdlib.GetConnector(*pg, stdlib.OptionAfterConnect(func(ctx context.Context, c *pgx.Conn) error {
		// An answer means that the write is on disk, whatever the server's default is.
		_, err := c.Exec(ctx, "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'")
		if err != nil {
			return err
		}
		// The ledger reads by key only. Old statistics must not make the server scan ten million
		// jobs.
		_, err = c.Exec(ctx, "SELECT set_config(name, 'off', false) FROM unnest(ARRAY['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin']) AS name")
		return err
	}))
	d.writer, d.reader = sql.OpenDB(connector), sql.OpenDB(connector)
	d.writer.SetMaxOpenConns(1)
	d.reader.SetMaxOpenConns(readers)
	d.reader.SetMaxIdleConns(readers)
	return nil
}
