package ledger

import (
	"context"

	"github.com/tenurehq/tenure/reference/ledger/api"
)

// save writes the marks and what else the group changed. It reports whether it wrote anything.
func (t *tx) save(ctx context.Context, from *state, history, rejections int) (changed bool, err error) {
	if err := from.marks.Store(ctx); err != nil {
		return false, err
	}
	var resources, sequences, allocations, ticks []row
	for name, r := range from.resources {
		if r.changed {
			resources = append(resources, row{name, r.lastTick, from.nowMS, r.counters.jobs, r.counters.jobsVersion, r.counters.firings, r.counters.pending})
		}
	}
	for k, r := range from.sequences {
		if r.changed {
			sequences = append(sequences, row{k.resource, k.name, r.lastSeq, r.token, r.allocations, from.nowMS})
		}
	}
	for _, a := range from.allocations {
		allocations = append(allocations, row{a.resource, a.name, a.N, a.First, a.Last, a.Token, a.AtMS})
	}
	for _, k := range from.ticks {
		ticks = append(ticks, row{k.resource, k.N, k.Token, k.Seq, k.Key, string(k.Payload), k.AtMS})
	}
	writes := []rowsWrite{
		{upsertResources, resources},
		{upsertSequences, sequences},
		{insertAllocations, allocations},
		{insertTicks, ticks},
		{upsertVersions("checkpoint"), versions(from.checkpoints, from.nowMS)},
		{upsertVersions("record"), versions(from.records, from.nowMS)},
	}
	for _, w := range append(append(writes, jobWrites(from)...), sharedWrites(&from.shared, from.nowMS)...) {
		if err := t.execRows(ctx, w.statement, w.rows); err != nil {
			return false, err
		}
		changed = changed || len(w.rows) > 0
	}
	if err := t.trim(ctx, from, history); err != nil {
		return false, err
	}
	if len(from.rejections) > 0 {
		return true, t.saveRejections(ctx, from.rejections, rejections)
	}
	return changed, nil
}

// rowsWrite is a statement on {rows}.
type rowsWrite struct {
	statement string
	rows      []row
}

const (
	upsertResources = `INSERT INTO fenced_resource (name, last_tick, updated_ms, jobs, jobs_version, firings, firings_pending)
		SELECT e->>0, CAST(e->>1 AS BIGINT), CAST(e->>2 AS BIGINT), CAST(e->>3 AS BIGINT), CAST(e->>4 AS BIGINT), CAST(e->>5 AS BIGINT), CAST(e->>6 AS BIGINT) FROM {rows} WHERE true
		ON CONFLICT (name) DO UPDATE SET last_tick = excluded.last_tick, updated_ms = excluded.updated_ms, jobs = excluded.jobs,
			jobs_version = excluded.jobs_version, firings = excluded.firings, firings_pending = excluded.firings_pending`
	upsertSequences = `INSERT INTO sequence (resource, name, last_seq, owner_token, allocations, updated_ms)
		SELECT e->>0, e->>1, CAST(e->>2 AS BIGINT), CAST(e->>3 AS BIGINT), CAST(e->>4 AS BIGINT), CAST(e->>5 AS BIGINT) FROM {rows} WHERE true
		ON CONFLICT (resource, name) DO UPDATE SET last_seq = excluded.last_seq, owner_token = excluded.owner_token,
			allocations = excluded.allocations, updated_ms = excluded.updated_ms`
	insertAllocations = `INSERT INTO allocation (resource, name, n, first_seq, last_seq, token, at_ms)
		SELECT e->>0, e->>1, CAST(e->>2 AS BIGINT), CAST(e->>3 AS BIGINT), CAST(e->>4 AS BIGINT), CAST(e->>5 AS BIGINT), CAST(e->>6 AS BIGINT) FROM {rows}`
	insertTicks = `INSERT INTO tick (resource, n, token, seq, tick_key, payload, at_ms)
		SELECT e->>0, CAST(e->>1 AS BIGINT), CAST(e->>2 AS BIGINT), CAST(e->>3 AS BIGINT), e->>4, e->>5, CAST(e->>6 AS BIGINT) FROM {rows}`
)

func upsertVersions(table string) string {
	return `INSERT INTO ` + table + ` (resource, name, version, token, value, updated_ms)
		SELECT e->>0, e->>1, CAST(e->>2 AS BIGINT), CAST(e->>3 AS BIGINT), e->>4, CAST(e->>5 AS BIGINT) FROM {rows} WHERE true
		ON CONFLICT (resource, name) DO UPDATE SET version = excluded.version, token = excluded.token,
			value = excluded.value, updated_ms = excluded.updated_ms`
}

func versions(m map[at]versionRow, nowMS int64) []row {
	var rows []row
	for k, r := range m {
		if r.changed {
			rows = append(rows, row{k.resource, k.name, r.version, r.token, r.value, nowMS})
		}
	}
	return rows
}

// trimEvery is how many entries are added to a history before old ones are deleted.
const trimEvery = 256

// oldest is up to where a history may be deleted, now that its nth entry was added.
func oldest(n uint64, history int) (upTo int64, due bool) {
	return int64(n) - int64(history), n%trimEvery == 0 && n > uint64(history)
}

func (t *tx) trim(ctx context.Context, from *state, history int) (err error) {
	deleteUpTo := func(n uint64, statement string, of ...any) {
		if upTo, due := oldest(n, history); due && err == nil {
			err = t.exec(ctx, statement, append(of, upTo)...)
		}
	}
	for k, r := range from.firings {
		if r.fresh {
			deleteUpTo(r.n, trimFirings, k.resource)
		}
	}
	for _, k := range from.ticks {
		deleteUpTo(k.N, "DELETE FROM tick WHERE resource = $1 AND n <= $2", k.resource)
	}
	for _, a := range from.allocations {
		deleteUpTo(a.N, "DELETE FROM allocation WHERE resource = $1 AND name = $2 AND n <= $3", a.resource, a.name)
	}
	return err
}

// saveRejections numbers the refused writes by a counter that outlives them.
func (t *tx) saveRejections(ctx context.Context, rejected []api.Rejection, keep int) error {
	var total uint64
	if err := t.QueryRow(ctx, "SELECT value FROM ledger_counter WHERE name = 'rejections' {lock}").Scan(&total); err != nil {
		return err
	}
	rows := make([]row, 0, len(rejected))
	for _, r := range rejected {
		total++
		rows = append(rows, row{total, r.Resource, r.Deployment, r.Group, r.Token, r.Seq, r.Holder, r.Reason, r.CurrentToken, number(r.Applied), r.AtMS})
	}
	if err := t.execRows(ctx, `INSERT INTO rejection (id, resource, deployment, grp, token, seq, holder, reason, current_token, applied, at_ms)
		SELECT CAST(e->>0 AS BIGINT), e->>1, e->>2, e->>3, CAST(e->>4 AS BIGINT), CAST(e->>5 AS BIGINT), e->>6, e->>7,
			CAST(e->>8 AS BIGINT), CAST(e->>9 AS BIGINT), CAST(e->>10 AS BIGINT) FROM {rows}`, rows); err != nil {
		return err
	}
	if err := t.exec(ctx, "UPDATE ledger_counter SET value = $1 WHERE name = 'rejections'", int64(total)); err != nil {
		return err
	}
	return t.exec(ctx, "DELETE FROM rejection WHERE id <= $1", int64(total)-int64(keep))
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
