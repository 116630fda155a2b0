package scheduler

import (
	"cmp"
	"slices"

	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/schedule"
	"github.com/tenurehq/tenure/reference/scheduler/outbox"
)

// window is the jobs that are due soon, as read from the ledger and moved by this leader since.
// It may be wrong about a job that another leader moved: the ledger reports that when the job is
// fired, and then the window is read again.
//
// W1: each job that is due before covered, at version, is in it with the instant it is due at in
// the ledger or an earlier one, unless stale is set.
type window struct {
	jobs    map[string]*entry
	covered int64
	version uint64
	total   uint64
	stale   bool
}

type entry struct {
	job   ledgerapi.Job // without what is not needed
	spec  schedule.Spec
	wrong error // why the schedule cannot be read
}

// newWindow makes a window of the jobs that are due before an instant, in order: all of them or,
// if more is set, the first ones.
func newWindow(read []ledgerapi.Job, before int64, more bool, version, total uint64) *window {
	w := &window{jobs: make(map[string]*entry, len(read)), covered: before, version: version, total: total}
	specs := make(map[string]*entry)
	for _, j := range read {
		e := &entry{job: ledgerapi.Job{Key: j.Key, Misfire: j.Misfire, Payload: j.Payload, NextMS: j.NextMS}}
		if known := specs[j.Schedule]; known != nil {
			e.spec, e.wrong = known.spec, known.wrong
		} else if j.Schedule != "" {
			e.spec, e.wrong = schedule.Parse(j.Schedule)
			specs[j.Schedule] = e
		}
		w.jobs[j.Key] = e
	}
	if more && len(read) > 0 {
		w.covered = read[len(read)-1].NextMS
	}
	return w
}

// due are the jobs that are due at an instant, the oldest first.
func (w *window) due(now int64) []*entry {
	var all []*entry
	for _, e := range w.jobs {
		if e.job.NextMS <= now {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.job.NextMS, b.job.NextMS), cmp.Compare(a.job.Key, b.job.Key))
	})
	return all
}

// enough reports whether the window has everything that may be fired up to an instant.
func (w *window) enough(until int64, room int) bool {
	if w.stale || w.covered > until {
		return !w.stale
	}
	due, bytes := w.due(until), 0
	for _, e := range due {
		bytes += len(e.job.Payload)
	}
	return len(due) >= room || bytes >= tickBytes
}

// fairShare limits a job with many missed instants to this part of a tick, until the other
// jobs have been served.
const fairShare = 16

// planned is a write for a job of the window.
type planned struct {
	*entry
	write ledgerapi.FireWrite
}

// plan returns the writes of a tick for the jobs that are due: at most room, and as far as their
// payloads fit. It changes nothing: see apply.
func (w *window) plan(now, grace int64, room int) []planned {
	type place struct {
		*entry
		next int64
	}
	var queue []place
	for _, e := range w.due(now) {
		queue = append(queue, place{e, e.job.NextMS})
	}
	var all []planned
	for bytes := tickBytes; len(queue) > 0 && len(all) < room; {
		first := queue[0]
		queue = queue[1:]
		size := len(first.job.Payload)
		if size > bytes && len(all) > 0 {
			break
		}
		var writes []ledgerapi.FireWrite
		if first.wrong != nil {
			writes = []ledgerapi.FireWrite{postpone(first.job.Key, first.next, now)}
		} else {
			share := min(max(1, room/fairShare), room-len(all))
			if size > 0 {
				share = max(1, min(share, tickBytes/fairShare/size, bytes/size))
			}
			writes = decide(first.job.Key, first.job.Misfire, first.spec, first.next, now, grace, share)
		}
		for _, f := range writes {
			all = append(all, planned{first.entry, f})
			bytes -= size
		}
		if next := writes[len(writes)-1].NextMS; next != 0 && next <= now {
			queue = append(queue, place{first.entry, next})
		}
	}
	return all
}

// apply moves a job as the ledger did, and returns the firing to send; nil if it was skipped or
// another leader has fired it.
func (w *window) apply(p planned, o ledgerapi.FireOutcome) *outbox.Firing {
	if o.Moved {
		w.stale = true
		return nil
	}
	p.job.NextMS = p.write.NextMS
	if p.write.NextMS == 0 || p.write.NextMS >= w.covered {
		delete(w.jobs, p.job.Key)
	} else {
		w.jobs[p.job.Key] = p.entry
	}
	if p.write.NextMS == 0 && w.total > 0 {
		w.total--
	}
	if p.write.Skip || o.Duplicate {
		return nil
	}
	return &outbox.Firing{Job: p.job.Key, AtMS: p.write.AtMS, Payload: p.job.Payload}
}

// clone returns a copy that can be changed while others read this one.
func (w *window) clone() *window {
	c := *w
	c.jobs = make(map[string]*entry, len(w.jobs))
	for key, e := range w.jobs {
		own := *e
		c.jobs[key] = &own
	}
	return &c
}
