package state

import (
	"cmp"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

type job struct {
	exists   bool
	schedule string
	misfire  string
	payload  string
	nextMS   int64
	token    fence.Token // of who changed it
}

type firing struct {
	n           uint64 // 0: there is none
	pending     bool
	worker      string
	deliveredMS int64

	fresh   bool // it is not in the database yet
	token   fence.Token
	payload string
}

func (d *draft) job(w api.JobWrite) *api.JobOutcome {
	here := at{d.batch.Resource, w.Key}
	row := d.jobs.rows[here]
	d.counters.JobsVersion++
	o := &api.JobOutcome{Version: d.counters.JobsVersion, Existed: row.exists}
	switch {
	case w.Delete && !row.exists:
		return o
	case w.Delete:
		d.counters.Jobs--
		set(d, &d.jobs, here, job{})
		return o
	case !row.exists:
		d.counters.Jobs++
	}
	next := w.NextMS
	if row.exists && w.Schedule != "" && w.Schedule == row.schedule {
		// An instant that is due and was not fired stays: writing the same schedule again must
		// not skip it.
		next = min(next, row.nextMS)
	}
	o.NextMS = next
	set(d, &d.jobs, here, job{exists: true, schedule: w.Schedule, misfire: cmp.Or(w.Misfire, api.MisfireOnce), payload: string(w.Payload), nextMS: next, token: d.batch.Stamp.Token})
	return o
}

// fire compares the instant at which the job is due. So of two leaders, or two attempts of one,
// only one fires it.
func (d *draft) fire(w api.FireWrite) *api.FireOutcome {
	here, when := at{d.batch.Resource, w.Job}, moment{d.batch.Resource, w.Job, w.AtMS}
	row := d.jobs.rows[here]
	o := &api.FireOutcome{Moved: !row.exists || row.nextMS != w.DueMS}
	if !w.Skip {
		o.Duplicate = d.firings.rows[when].n != 0
	}
	if o.Moved {
		return o
	}
	if !w.Skip && !o.Duplicate {
		d.counters.Firings++
		d.counters.Pending++
		set(d, &d.firings, when, firing{n: d.counters.Firings, pending: true, fresh: true, token: d.batch.Stamp.Token, payload: row.payload})
	}
	row.nextMS, row.token = w.NextMS, d.batch.Stamp.Token
	if w.NextMS == 0 {
		d.counters.Jobs--
		row = job{}
	}
	set(d, &d.jobs, here, row)
	return o
}

func (d *draft) delivered(w api.DeliveredWrite) *api.DeliveredOutcome {
	when := moment{d.batch.Resource, w.Job, w.AtMS}
	row := d.firings.rows[when]
	o := &api.DeliveredOutcome{Missing: row.n == 0, Duplicate: row.n != 0 && !row.pending}
	if row.pending {
		d.counters.Pending--
		row.pending, row.worker, row.deliveredMS = false, w.Worker, d.NowMS
		set(d, &d.firings, when, row)
	}
	return o
}
