package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"maps"
	"slices"

	"github.com/tenurehq/tenure/app/ledger/api"
)

// row is one row as a JSON array: a group is read and written with a few statements,
// however many callers it has.
type row []any

func (s *store) exec(ctx context.Context, t *tx, statement string, rows []row) error {
	if len(rows) == 0 {
		return nil
	}
	data, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	return t.exec(ctx, s.words(statement), string(data))
}

func (s *store) query(ctx context.Context, t *tx, statement string, keys []row, scan func(*sql.Rows) error) error {
	if len(keys) == 0 {
		return nil
	}
	data, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	rows, err := t.query(ctx, s.words(statement), string(data))
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// touched is what a group is about.
type touched struct {
	resources                                map[string]bool
	sequences, checkpoints, records, tickKey map[at]bool
	jobs                                     map[at]bool
	shared                                   map[sharedKey]bool
	firings                                  map[moment]bool
}

// touch leaves out the ops that were refused already.
func touch(group []*op, verdicts []verdict) touched {
	t := touched{resources: map[string]bool{}}
	for i, o := range group {
		switch {
		case verdicts[i].err != nil, o.kind == probe, o.kind == accept:
			continue
		case o.kind == share:
			put(&t.shared, keyOf(*o.shared), true)
			continue
		}
		r := o.batch.Resource
		t.resources[r] = true
		for _, w := range o.batch.Writes {
			switch {
			case w.Sequence != nil:
				put(&t.sequences, at{r, w.Sequence.Name}, true)
			case w.Checkpoint != nil:
				put(&t.checkpoints, at{r, w.Checkpoint.Name}, true)
			case w.Record != nil:
				put(&t.records, at{r, w.Record.Key}, true)
			case w.Tick != nil && w.Tick.Key != "":
				put(&t.tickKey, at{r, w.Tick.Key}, true)
			case w.Job != nil:
				put(&t.jobs, at{r, w.Job.Key}, true)
			case w.Fire != nil:
				put(&t.jobs, at{r, w.Fire.Job}, true)
				if !w.Fire.Skip {
					put(&t.firings, moment{r, w.Fire.Job, w.Fire.AtMS}, true)
				}
			case w.Delivered != nil:
				put(&t.firings, moment{r, w.Delivered.Job, w.Delivered.AtMS}, true)
			}
		}
	}
	return t
}

func keys(m map[at]bool) []row {
	rows := make([]row, 0, len(m))
	for k := range m {
		rows = append(rows, row{k.resource, k.name})
	}
	return rows
}

// markSession is the session of the mark's token.
const markSession = `CASE WHEN session_token = max_token THEN session ELSE '' END`

const selectResources = `SELECT name, deployment, grp, max_token, seq, digest, ` + markSession + `, last_tick, answer,
	jobs, jobs_version, firings, firings_pending
	FROM fenced_resource WHERE name IN (SELECT e->>0 FROM {rows}) ORDER BY name {lock}`

// load reads what the group touches and locks it: a resource's row guards
// everything that belongs to it. Rows that are missing are made first, because what
// is not there cannot be locked.
func (s *store) load(ctx context.Context, t *tx, on touched, into *state) error {
	var names []row
	for _, name := range slices.Sorted(maps.Keys(on.resources)) {
		names = append(names, row{name})
	}
	into.resources = make(map[string]*resourceRow, len(names))
	scan := func(rows *sql.Rows) error {
		var name string
		var r resourceRow
		err := rows.Scan(&name, &r.mark.Deployment, &r.mark.Group, &r.mark.Token, &r.mark.Seq, &r.mark.Digest, &r.mark.Session, &r.lastTick, &r.answer,
			&r.counters.jobs, &r.counters.jobsVersion, &r.counters.firings, &r.counters.pending)
		r.fresh = r.mark.Token == 0
		into.resources[name] = &r
		return err
	}
	if err := s.query(ctx, t, selectResources, names, scan); err != nil {
		return err
	}
	var missing []row
	for _, name := range slices.Sorted(maps.Keys(on.resources)) {
		if into.resources[name] == nil {
			missing = append(missing, row{name})
		}
	}
	if len(missing) > 0 {
		count, err := t.number(ctx, "SELECT COUNT(*) FROM fenced_resource WHERE max_token > 0")
		if err != nil {
			return err
		}
		into.count = int(count)
		if err := s.exec(ctx, t, `INSERT INTO fenced_resource (name, deployment, grp, max_token, seq, digest, last_tick, answer, updated_ms)
			SELECT e->>0, '', '', 0, 0, '', 0, '', 0 FROM {rows} WHERE true ON CONFLICT DO NOTHING`, missing); err != nil {
			return err
		}
		if err := s.query(ctx, t, selectResources, missing, scan); err != nil {
			return err
		}
	}
	return s.loadRest(ctx, t, on, into)
}

func (s *store) loadRest(ctx context.Context, t *tx, on touched, into *state) error {
	into.sequences, into.checkpoints, into.records = map[at]sequenceRow{}, map[at]versionRow{}, map[at]versionRow{}
	into.keyed, into.open = map[at]uint64{}, map[at]int{}
	err := s.query(ctx, t, `SELECT s.resource, s.name, s.last_seq, s.owner_token, s.allocations
		FROM sequence s JOIN {rows} ON s.resource = e->>0 AND s.name = e->>1`, keys(on.sequences), func(rows *sql.Rows) error {
		var k at
		var r sequenceRow
		err := rows.Scan(&k.resource, &k.name, &r.lastSeq, &r.token, &r.allocations)
		into.sequences[k] = r
		return err
	})
	if err != nil {
		return err
	}
	for _, kind := range []struct {
		table string
		keys  map[at]bool
		into  map[at]versionRow
	}{{"checkpoint", on.checkpoints, into.checkpoints}, {"record", on.records, into.records}} {
		err := s.query(ctx, t, `SELECT v.resource, v.name, v.version
			FROM `+kind.table+` v JOIN {rows} ON v.resource = e->>0 AND v.name = e->>1`, keys(kind.keys), func(rows *sql.Rows) error {
			var k at
			var r versionRow
			err := rows.Scan(&k.resource, &k.name, &r.version)
			kind.into[k] = r
			return err
		})
		if err != nil {
			return err
		}
	}
	err = s.query(ctx, t, `SELECT t.resource, t.tick_key, t.n
		FROM tick t JOIN {rows} ON t.resource = e->>0 AND t.tick_key = e->>1 WHERE t.tick_key <> ''`, keys(on.tickKey), func(rows *sql.Rows) error {
		var k at
		var n uint64
		err := rows.Scan(&k.resource, &k.name, &n)
		into.keyed[k] = n
		return err
	})
	if err != nil {
		return err
	}
	if err := s.loadJobs(ctx, t, on, into); err != nil {
		return err
	}
	return s.loadShared(ctx, t, on.shared, &into.shared)
}

// save writes what the group changed. It reports whether there was anything.
func (s *store) save(ctx context.Context, t *tx, from *state, history, rejections int) (changed bool, err error) {
	var resources, unused, sequences []row
	for name, r := range from.resources {
		switch {
		case r.changed:
			m := r.mark
			resources = append(resources, row{name, m.Deployment, m.Group, m.Token, m.Seq, m.Digest, r.lastTick, r.answer, from.nowMS,
				r.counters.jobs, r.counters.jobsVersion, r.counters.firings, r.counters.pending, m.Session})
		case r.fresh:
			unused = append(unused, row{name})
		}
	}
	for k, r := range from.sequences {
		if r.changed {
			sequences = append(sequences, row{k.resource, k.name, r.lastSeq, r.token, r.allocations, from.nowMS})
		}
	}
	ticks := make([]row, 0, len(from.ticks))
	for _, k := range from.ticks {
		ticks = append(ticks, row{k.resource, k.N, k.Token, k.Seq, k.Key, string(k.Payload), k.AtMS})
	}
	allocations := make([]row, 0, len(from.allocations))
	for _, a := range from.allocations {
		allocations = append(allocations, row{a.resource, a.name, a.N, a.First, a.Last, a.Token, a.AtMS})
	}
	checkpoints, records := versions(from.checkpoints, from.nowMS), versions(from.records, from.nowMS)
	// Rows that load made and nobody needed are not a change worth a commit.
	if err := s.exec(ctx, t, `DELETE FROM fenced_resource WHERE max_token = 0 AND name IN (SELECT e->>0 FROM {rows})`, unused); err != nil {
		return false, err
	}
	for _, w := range []struct {
		statement string
		rows      []row
	}{
		{`INSERT INTO fenced_resource (name, deployment, grp, max_token, seq, digest, last_tick, answer, updated_ms, jobs, jobs_version, firings, firings_pending, session, session_token)
			SELECT e->>0, e->>1, e->>2, CAST(e->>3 AS BIGINT), CAST(e->>4 AS BIGINT), e->>5, CAST(e->>6 AS BIGINT), e->>7, CAST(e->>8 AS BIGINT),
				CAST(e->>9 AS BIGINT), CAST(e->>10 AS BIGINT), CAST(e->>11 AS BIGINT), CAST(e->>12 AS BIGINT), e->>13, CAST(e->>3 AS BIGINT) FROM {rows} WHERE true
			ON CONFLICT (name) DO UPDATE SET deployment = excluded.deployment, grp = excluded.grp, max_token = excluded.max_token, seq = excluded.seq,
				digest = excluded.digest, last_tick = excluded.last_tick, answer = excluded.answer, updated_ms = excluded.updated_ms,
				jobs = excluded.jobs, jobs_version = excluded.jobs_version, firings = excluded.firings, firings_pending = excluded.firings_pending,
				session = excluded.session, session_token = excluded.session_token`, resources},
		{`INSERT INTO sequence (resource, name, last_seq, owner_token, allocations, updated_ms)
			SELECT e->>0, e->>1, CAST(e->>2 AS BIGINT), CAST(e->>3 AS BIGINT), CAST(e->>4 AS BIGINT), CAST(e->>5 AS BIGINT) FROM {rows} WHERE true
			ON CONFLICT (resource, name) DO UPDATE SET last_seq = excluded.last_seq, owner_token = excluded.owner_token,
				allocations = excluded.allocations, updated_ms = excluded.updated_ms`, sequences},
		{`INSERT INTO allocation (resource, name, n, first_seq, last_seq, token, at_ms)
			SELECT e->>0, e->>1, CAST(e->>2 AS BIGINT), CAST(e->>3 AS BIGINT), CAST(e->>4 AS BIGINT), CAST(e->>5 AS BIGINT), CAST(e->>6 AS BIGINT) FROM {rows}`, allocations},
		{`INSERT INTO tick (resource, n, token, seq, tick_key, payload, at_ms)
			SELECT e->>0, CAST(e->>1 AS BIGINT), CAST(e->>2 AS BIGINT), CAST(e->>3 AS BIGINT), e->>4, e->>5, CAST(e->>6 AS BIGINT) FROM {rows}`, ticks},
		{upsertVersion("checkpoint"), checkpoints},
		{upsertVersion("record"), records},
	} {
		if err := s.exec(ctx, t, w.statement, w.rows); err != nil {
			return false, err
		}
		changed = changed || len(w.rows) > 0
	}
	jobs, err := s.saveJobs(ctx, t, from, history)
	if err != nil {
		return false, err
	}
	shared, err := s.saveShared(ctx, t, &from.shared, from.nowMS)
	if err != nil {
		return false, err
	}
	changed = changed || jobs || shared
	if err := s.trim(ctx, t, from, history); err != nil {
		return false, err
	}
	if len(from.rejections) > 0 {
		return true, s.saveRejections(ctx, t, from.rejections, rejections)
	}
	return changed, nil
}

func upsertVersion(table string) string {
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

// trimEvery is how many entries of a history are added before the oldest are looked
// at again.
const trimEvery = 256

// oldest is up to where a history may be cut, now that its nth entry was added.
func oldest(n uint64, history int) (upTo int64, due bool) {
	return int64(n) - int64(history), n%trimEvery == 0 && n > uint64(history)
}

func (s *store) trim(ctx context.Context, t *tx, from *state, history int) error {
	for _, k := range from.ticks {
		if upTo, due := oldest(k.N, history); due {
			if err := t.exec(ctx, s.words("DELETE FROM tick WHERE resource = $1 AND n <= $2"), k.resource, upTo); err != nil {
				return err
			}
		}
	}
	for _, a := range from.allocations {
		if upTo, due := oldest(a.N, history); due {
			if err := t.exec(ctx, s.words("DELETE FROM allocation WHERE resource = $1 AND name = $2 AND n <= $3"), a.resource, a.name, upTo); err != nil {
				return err
			}
		}
	}
	return nil
}

// saveRejections numbers the refused writes by a counter that outlives them.
func (s *store) saveRejections(ctx context.Context, t *tx, rejected []api.Rejection, keep int) error {
	total, err := t.number(ctx, s.words("SELECT value FROM ledger_counter WHERE name = 'rejections' {lock}"))
	if err != nil {
		return err
	}
	rows := make([]row, 0, len(rejected))
	for _, r := range rejected {
		total++
		rows = append(rows, row{total, r.Resource, r.Deployment, r.Group, r.Token, r.Seq, r.Holder, r.Reason, r.CurrentToken, number(r.Applied), r.AtMS})
	}
	if err := s.exec(ctx, t, `INSERT INTO rejection (id, resource, deployment, grp, token, seq, holder, reason, current_token, applied, at_ms)
		SELECT CAST(e->>0 AS BIGINT), e->>1, e->>2, e->>3, CAST(e->>4 AS BIGINT), CAST(e->>5 AS BIGINT), e->>6, e->>7,
			CAST(e->>8 AS BIGINT), CAST(e->>9 AS BIGINT), CAST(e->>10 AS BIGINT) FROM {rows}`, rows); err != nil {
		return err
	}
	if err := t.exec(ctx, s.words("UPDATE ledger_counter SET value = $1 WHERE name = 'rejections'"), int64(total)); err != nil {
		return err
	}
	return t.exec(ctx, s.words("DELETE FROM rejection WHERE id <= $1"), int64(total)-int64(keep))
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
