package database

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/tenurehq/tenure/reference/config"
)

func (d *DB) openPostgres(url string) error {
	pg, err := pgx.ParseConfig(url)
	if err != nil {
		return config.Errorf("db", "not a PostgreSQL URL: %v", err)
	}
	// A ledger that has vanished must not keep its locks.
	pg.RuntimeParams["idle_in_transaction_session_timeout"] = fmt.Sprint(d.timeout.Milliseconds())
	if _, given := pg.RuntimeParams["application_name"]; !given {
		pg.RuntimeParams["application_name"] = "tenure ledger"
	}
	if pg.ConnectTimeout == 0 {
		pg.ConnectTimeout = d.timeout
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
	d.writer, d.Reader = sql.OpenDB(connector), sql.OpenDB(connector)
	d.writer.SetMaxOpenConns(1)
	d.Reader.SetMaxOpenConns(readers)
	d.Reader.SetMaxIdleConns(readers)
	return nil
}
