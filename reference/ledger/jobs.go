package ledger

import (
	"cmp"
	"context"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// moment identifies a firing.
type moment struct {
	resource, job string
	atMS          int64
}

// counters are kept with the resource: counting ten million rows takes seconds.
type counters struct {
	jobs, jobsVersion, firings, pending uint64
}

type jobRow struct {
	exists   bool
	schedule string
	misfire  string
	payload  string
	nextMS   int64
	token    fence.Token // of who changed it
	changed  bool
}

type firingRow struct {
	n           uint64 // 0: there is none
	pending     bool
	worker      string
	deliveredMS int64
	changed     bool

	fresh   bool // it is not in the database yet
	token   fence.Token
	payload string
}

func (d *draft) job(w api.JobWrite) *api.JobOutcome {
	here := at{d.batch.Resource, w.Key}
	row := d.jobs[here]
	d.counters.jobsVersion++
	o := &api.JobOutcome{Version: d.counters.jobsVersion, Existed: row.exists}
	switch {
	case w.Delete && !row.exists:
		return o
	case w.Delete:
		d.counters.jobs--
		set(d, d.jobs, here, jobRow{changed: true})
		return o
	case !row.exists:
		d.counters.jobs++
	}
	next := w.NextMS
	if row.exists && w.Schedule != "" && w.Schedule == row.schedule {
		// An instant that is due and was not fired stays: writing the same schedule again must
		// not skip it.
		next = min(next, row.nextMS)
	}
	o.NextMS = next
	set(d, d.jobs, here, jobRow{exists: true, schedule: w.Schedule, misfire: cmp.Or(w.Misfire, api.MisfireOnce), payload: string(w.Payload), nextMS: next, token: d.batch.Stamp.Token, changed: true})
	return o
}

// fire compares the instant at which the job is due. So of two leaders, or two attempts of one,
// only one fires it.
func (d *draft) fire(w api.FireWrite) *api.FireOutcome {
	here, when := at{d.batch.Resource, w.Job}, moment{d.batch.Resource, w.Job, w.AtMS}
	row := d.jobs[here]
	o := &api.FireOutcome{Moved: !row.exists || row.nextMS != w.DueMS}
	if !w.Skip {
		o.Duplicate = d.firings[when].n != 0
	}
	if o.Moved {
		return o
	}
	if !w.Skip && !o.Duplicate {
		d.counters.firings++
		d.counters.pending++
		set(d, d.firings, when, firingRow{n: d.counters.firings, pending: true, changed: true, fresh: true, token: d.batch.Stamp.Token, payload: row.payload})
	}
	row.nextMS, row.token, row.changed = w.NextMS, d.batch.Stamp.Token, true
	if w.NextMS == 0 {
		d.counters.jobs--
		row = jobRow{changed: true}
	}
	set(d, d.jobs, here, row)
	return o
}

func (d *draft) delivered(w api.DeliveredWrite) *api.DeliveredOutcome {
	when := moment{d.batch.Resource, w.Job, w.AtMS}
	row := d.firings[when]
	o := &api.DeliveredOutcome{Missing: row.n == 0, Duplicate: row.n != 0 && !row.pending}
	if row.pending {
		d.counters.pending--
		row.pending, row.worker, row.deliveredMS, row.changed = false, w.Worker, d.nowMS, true
		set(d, d.firings, when, row)
	}
	return o
}

const (
	selectJobRows = `SELECT j.resource, j.name, j.schedule, j.misfire, j.payload, j.next_ms
		FROM {rows} JOIN job j ON j.resource = e->>0 AND j.name = e->>1`
	selectFiringRows = `SELECT f.resource, f.job, f.at_ms, f.n, f.pending
		FROM {rows} JOIN firing f ON f.resource = e->>0 AND f.job = e->>1 AND f.at_ms = CAST(e->>2 AS BIGINT)`
	upsertJobs = `INSERT INTO job (resource, name, next_ms, schedule, misfire, payload, token, updated_ms)
		SELECT e->>0, e->>1, CAST(e->>2 AS BIGINT), e->>3, e->>4, e->>5, CAST(e->>6 AS BIGINT), CAST(e->>7 AS BIGINT) FROM {rows} WHERE true
		ON CONFLICT (resource, name) DO UPDATE SET next_ms = excluded.next_ms, schedule = excluded.schedule, misfire = excluded.misfire,
			payload = excluded.payload, token = excluded.token, updated_ms = excluded.updated_ms`
	deleteJobs    = `DELETE FROM job WHERE (resource, name) IN (SELECT e->>0, e->>1 FROM {rows})`
	insertFirings = `INSERT INTO firing (resource, n, job, at_ms, token, fired_ms, payload, worker, delivered_ms, pending)
		SELECT e->>0, CAST(e->>1 AS BIGINT), e->>2, CAST(e->>3 AS BIGINT), CAST(e->>4 AS BIGINT), CAST(e->>5 AS BIGINT), e->>6, e->>7,
			CAST(e->>8 AS BIGINT), CAST(e->>9 AS BIGINT) FROM {rows}`
	updateFirings = `UPDATE firing SET worker = e->>2, delivered_ms = CAST(e->>3 AS BIGINT), pending = 0
		FROM {rows} WHERE firing.resource = e->>0 AND firing.n = CAST(e->>1 AS BIGINT)`
	trimFirings = `DELETE FROM firing {by_state} WHERE resource = $1 AND pending = 0 AND n <= $2`
)

func (t *tx) loadJobs(ctx context.Context, on touched, into *state) error {
	into.jobs, into.firings = make(map[at]jobRow, len(on.jobs)), make(map[moment]firingRow, len(on.firings))
	err := readRows(ctx, t, selectJobRows, keys(on.jobs), into.jobs, func(k *at, r *jobRow) []any {
		r.exists = true
		return []any{&k.resource, &k.name, &r.schedule, &r.misfire, &r.payload, &r.nextMS}
	})
	if err != nil {
		return err
	}
	wanted := make([]row, 0, len(on.firings))
	for k := range on.firings {
		wanted = append(wanted, row{k.resource, k.job, k.atMS})
	}
	return readRows(ctx, t, selectFiringRows, wanted, into.firings, func(k *moment, r *firingRow) []any {
		return []any{&k.resource, &k.job, &k.atMS, &r.n, truth{&r.pending}}
	})
}

// jobWrites are the jobs and firings that the group changed.
func jobWrites(from *state) []rowsWrite {
	var jobs, gone, fired, delivered []row
	for k, r := range from.jobs {
		switch {
		case r.changed && r.exists:
			jobs = append(jobs, row{k.resource, k.name, r.nextMS, r.schedule, r.misfire, r.payload, r.token, from.nowMS})
		case r.changed:
			gone = append(gone, row{k.resource, k.name})
		}
	}
	for k, r := range from.firings {
		switch {
		case r.fresh:
			fired = append(fired, row{k.resource, r.n, k.job, k.atMS, r.token, from.nowMS, r.payload, r.worker, r.deliveredMS, number(r.pending)})
		case r.changed:
			delivered = append(delivered, row{k.resource, r.n, r.worker, r.deliveredMS})
		}
	}
	return []rowsWrite{{upsertJobs, jobs}, {deleteJobs, gone}, {insertFirings, fired}, {updateFirings, delivered}}
}
