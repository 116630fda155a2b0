package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/database"
	"github.com/tenurehq/tenure/reference/ledger/state"
)

// seedChunk is how many jobs share a transaction.
const seedChunk = 100_000

// Seed adds n jobs to a resource, each to be fired once: the first at firstMS, each of the
// others everyMS later. Their keys are seed-000000000001 and so on, after those of an earlier
// call. The database creates them itself, in chunks that are each one fenced transaction.
// progress, if given, is called with how many there are.
//
// It is for load tests. A SQLite file must not be served meanwhile.
func Seed(ctx context.Context, cfg Config, resource string, stamp fence.Stamp, n uint64, firstMS, everyMS int64, payload json.RawMessage, progress func(done uint64)) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg = cfg.withDefaults()
	// The first and the last job are validated like any other.
	const most = 1_000_000_000
	if n < 1 || n > most || everyMS < 0 || everyMS > int64(api.MaxSequence)/most {
		return &api.RequestError{Field: "n", Value: fmt.Sprintf("%d every %d ms", n, everyMS), Rule: "from 1 to 10^9 jobs, at most some hours apart"}
	}
	b := api.Batch{Resource: resource, Stamp: stamp, Writes: []api.Write{
		{Job: &api.JobWrite{Key: "seed", Payload: payload, NextMS: firstMS}},
		{Job: &api.JobWrite{Key: "seed", NextMS: firstMS + int64(n-1)*everyMS}},
	}}
	if err := errors.Join(b.Validate(), stamp.Validate()); err != nil {
		return err
	}
	b.Writes = nil
	d, err := database.Open(ctx, cfg.DB, cfg.Timeout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	for done := uint64(0); done < n; {
		size := min(seedChunk, n-done)
		if err := seed(ctx, d, cfg, b, size, firstMS+int64(done)*everyMS, everyMS, string(payload)); err != nil {
			return fmt.Errorf("ledger: only %d of %d jobs were added: %w", done, n, err)
		}
		done += size
		if progress != nil {
			progress(done)
		}
	}
	return settle(ctx, d)
}

func seed(ctx context.Context, d *database.DB, cfg Config, b api.Batch, n uint64, firstMS, everyMS int64, payload string) error {
	return d.Within(ctx, func(t *database.Tx) error {
		st := cfg.state()
		st.Want(b)
		if err := st.Load(ctx, t); err != nil {
			return err
		}
		if v := st.Apply(state.Seal, b); v.Err != nil {
			return v.Err
		}
		st.AddJobs(b.Resource, n)
		if _, err := st.Save(ctx, t, cfg.History, cfg.Rejections); err != nil {
			return err
		}
		var last string
		if err := t.QueryRow(ctx, "SELECT COALESCE(MAX(name), 'seed-0') FROM job WHERE resource = $1 AND name >= 'seed-' AND name < 'seed-A'", b.Resource).Scan(&last); err != nil {
			return err
		}
		made, err := strconv.ParseInt(strings.TrimPrefix(last, "seed-"), 10, 64)
		if err != nil {
			return &api.RequestError{Field: "resource", Value: b.Resource, Rule: fmt.Sprintf("has a job %q between the keys of seeded jobs", last)}
		}
		// A number of 13 digits without its first digit has leading zeros, in every dialect.
		return t.Run(ctx, `WITH RECURSIVE c(i) AS (SELECT CAST(0 AS BIGINT) UNION ALL SELECT i + 1 FROM c WHERE i + 1 < CAST($2 AS BIGINT))
			INSERT INTO job (resource, name, next_ms, schedule, misfire, payload, token, updated_ms)
			SELECT CAST($1 AS TEXT), 'seed-' || substr(CAST(1000000000001 + CAST($3 AS BIGINT) + i AS TEXT), 2), CAST($4 AS BIGINT) + i * CAST($5 AS BIGINT),
				'', 'once', CAST($6 AS TEXT), CAST($7 AS BIGINT), CAST($8 AS BIGINT) FROM c`,
			b.Resource, int64(n), made, firstMS, everyMS, payload, int64(b.Stamp.Token), st.NowMS)
	})
}

// settle leaves the database like one that has had these jobs for a long time.
func settle(ctx context.Context, d *database.DB) error {
	statement := "PRAGMA wal_checkpoint(TRUNCATE)"
	if d.Dialect == sqlfence.Postgres {
		statement = "ANALYZE job"
	}
	_, err := d.Writer().ExecContext(ctx, statement)
	return err
}
