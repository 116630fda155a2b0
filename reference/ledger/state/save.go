package state

import (
	"context"

	"github.com/tenurehq/tenure/reference/ledger/database"
)

// Tests ask the database how it does the exported statements.
var (
	upsertResources   = upsert("fenced_resource", "name", "last_tick# updated_ms# jobs# jobs_version# firings# firings_pending#")
	upsertSequences   = upsert("sequence", "resource name", "last_seq# owner_token# allocations# updated_ms#")
	upsertCheckpoints = upsert("checkpoint", "resource name", "version# token# value updated_ms#")
	upsertRecords     = upsert("record", "resource name", "version# token# value updated_ms#")
	insertAllocations = insert("allocation", "resource name n# first_seq# last_seq# token# at_ms#")
	insertTicks       = insert("tick", "resource n# token# seq# tick_key payload at_ms#")
	upsertJobs        = upsert("job", "resource name", "next_ms# schedule misfire payload token# updated_ms#")
	DeleteJobs        = deleteRows("job", "resource name")
	insertFirings     = insert("firing", "resource job at_ms# n# token# fired_ms# payload worker delivered_ms# pending#")
	insertRejections  = insert("rejection", "id# resource deployment grp token# seq# holder reason current_token# applied# at_ms#")
	upsertShared      = upsert("shared", "deployment space name", "version# value updated_ms#")
	deleteShared      = deleteRows("shared", "deployment space name")
	updateCounters    = "UPDATE ledger_counter SET value = CAST(e->>1 AS BIGINT) FROM {rows} WHERE name = e->>0"
	UpdateFirings     = "UPDATE firing SET worker = e->>2, delivered_ms = CAST(e->>3 AS BIGINT), pending = 0 FROM {rows} WHERE firing.resource = e->>0 AND firing.n = CAST(e->>1 AS BIGINT)"
	TrimFirings       = "DELETE FROM firing {by_state} WHERE resource = $1 AND pending = 0 AND n <= $2"
)

// Save writes the marks and what else the group changed. It reports whether it wrote anything.
// History is how many entries of each history are kept, rejections how many refused writes.
func (s *State) Save(ctx context.Context, tx *database.Tx, history, rejections int) (changed bool, err error) {
	if err := s.marks.Store(ctx); err != nil {
		return false, err
	}
	for _, w := range append(s.writes(), s.shared.writes(s.NowMS)...) {
		if err := tx.RunRows(ctx, w.statement, w.rows); err != nil {
			return false, err
		}
		changed = changed || len(w.rows) > 0
	}
	if err := s.trim(ctx, tx, history); err != nil {
		return false, err
	}
	if len(s.rejections) > 0 {
		return true, s.saveRejections(ctx, tx, rejections)
	}
	return changed, nil
}

// writes are the changes of what belongs to resources.
func (s *State) writes() []write {
	allocations, ticks := write{statement: insertAllocations}, write{statement: insertTicks}
	for _, a := range s.allocations {
		allocations.add(a.at.row(), a.N, a.First, a.Last, a.Token, a.AtMS)
	}
	for _, k := range s.ticks {
		ticks.add(database.Row{k.resource}, k.N, k.Token, k.Seq, k.Key, string(k.Payload), k.AtMS)
	}
	jobs, gone := write{statement: upsertJobs}, write{statement: DeleteJobs}
	for k := range s.jobs.changed {
		if r := s.jobs.rows[k]; r.exists {
			jobs.add(k.row(), r.nextMS, r.schedule, r.misfire, r.payload, r.token, s.NowMS)
		} else {
			gone.add(k.row())
		}
	}
	fired, delivered := write{statement: insertFirings}, write{statement: UpdateFirings}
	for k := range s.firings.changed {
		if r := s.firings.rows[k]; r.fresh {
			fired.add(k.row(), r.n, r.token, s.NowMS, r.payload, r.worker, r.deliveredMS, number(r.pending))
		} else {
			delivered.add(database.Row{k.resource}, r.n, r.worker, r.deliveredMS)
		}
	}
	values := func(r version) []any { return []any{r.version, r.token, r.value, s.NowMS} }
	return []write{
		s.resources.changes(upsertResources, func(r resource) []any {
			return []any{r.lastTick, s.NowMS, r.counters.Jobs, r.counters.JobsVersion, r.counters.Firings, r.counters.Pending}
		}),
		s.sequences.changes(upsertSequences, func(r sequence) []any { return []any{r.lastSeq, r.token, r.allocations, s.NowMS} }),
		allocations, ticks,
		s.checkpoints.changes(upsertCheckpoints, values), s.records.changes(upsertRecords, values),
		jobs, gone, fired, delivered,
	}
}

func (s *shared) writes(nowMS int64) []write {
	made, gone, counters := write{statement: upsertShared}, write{statement: deleteShared}, write{statement: updateCounters}
	for k := range s.records.changed {
		if r := s.records.rows[k]; r.version != 0 {
			made.add(k.row(), r.version, r.value, nowMS)
		} else {
			gone.add(k.row())
		}
	}
	if s.counted {
		counters.rows = []database.Row{{"shared", s.count}, {"shared_floor", s.floor}}
	}
	return []write{made, gone, counters}
}

// TrimEvery is how many entries are added to a history before old ones are deleted.
const TrimEvery = 256

func (s *State) trim(ctx context.Context, tx *database.Tx, history int) (err error) {
	trim := func(n uint64, statement string, of ...any) {
		if err == nil && n%TrimEvery == 0 && n > uint64(history) {
			err = tx.Run(ctx, statement, append(of, int64(n)-int64(history))...)
		}
	}
	for k, r := range s.firings.rows {
		if r.fresh {
			trim(r.n, TrimFirings, k.resource)
		}
	}
	for _, k := range s.ticks {
		trim(k.N, "DELETE FROM tick WHERE resource = $1 AND n <= $2", k.resource)
	}
	for _, a := range s.allocations {
		trim(a.N, "DELETE FROM allocation WHERE resource = $1 AND name = $2 AND n <= $3", a.resource, a.name)
	}
	return err
}

// saveRejections numbers the refused writes by a counter that outlives them.
func (s *State) saveRejections(ctx context.Context, tx *database.Tx, keep int) error {
	var total uint64
	if err := tx.QueryRow(ctx, "SELECT value FROM ledger_counter WHERE name = 'rejections' {lock}").Scan(&total); err != nil {
		return err
	}
	rows := make([]database.Row, 0, len(s.rejections))
	for _, r := range s.rejections {
		total++
		rows = append(rows, database.Row{total, r.Resource, r.Deployment, r.Group, r.Token, r.Seq, r.Holder, r.Reason, r.CurrentToken, number(r.Applied), r.AtMS})
	}
	if err := tx.RunRows(ctx, insertRejections, rows); err != nil {
		return err
	}
	if err := tx.Run(ctx, "UPDATE ledger_counter SET value = $1 WHERE name = 'rejections'", int64(total)); err != nil {
		return err
	}
	return tx.Run(ctx, "DELETE FROM rejection WHERE id <= $1", int64(total)-int64(keep))
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
