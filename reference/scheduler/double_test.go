package scheduler

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/schedule"
	"github.com/tenurehq/tenure/reference/scheduler/outbox"
)

// ledgerDouble keeps jobs and firings by the rules of the ledger, in memory and with a clock
// that the test advances. It records calls that no scheduler may make.
type ledgerDouble struct {
	nowMS   int64
	grace   int64
	token   fence.Token
	version uint64
	jobs    map[string]ledgerapi.Job
	firings []*ledgerapi.Firing
	index   map[outbox.ID]*ledgerapi.Firing
	specs   map[string]schedule.Spec
	ticks   map[string]uint64
	cursor  *ledgerapi.Checkpoint
	wrong   []string
	// reading, if set, is called between the read of pending firings and the answer.
	reading func()
}

func newLedgerDouble() *ledgerDouble {
	return &ledgerDouble{nowMS: 1_800_000_000_000, jobs: make(map[string]ledgerapi.Job), ticks: make(map[string]uint64), index: make(map[outbox.ID]*ledgerapi.Firing), specs: map[string]schedule.Spec{"": {}}}
}

func (l *ledgerDouble) Now() clock.Instant    { return clock.Instant(l.nowMS * 1_000_000) }
func (l *ledgerDouble) NewTimer() clock.Timer { return clock.NewRuntimeTimer(l) }

func (l *ledgerDouble) Jobs(_ context.Context, _ string, before int64, after string, limit int) (ledgerapi.Jobs, error) {
	var all []ledgerapi.Job
	place := func(j ledgerapi.Job) string { return fmt.Sprintf("%020d %s", j.NextMS, j.Key) }
	for _, j := range l.jobs {
		if (before == 0 || j.NextMS < before) && place(j) > after {
			all = append(all, j)
		}
	}
	slices.SortFunc(all, func(a, b ledgerapi.Job) int { return cmp.Compare(place(a), place(b)) })
	page := ledgerapi.Jobs{NowMS: l.nowMS, Version: l.version, Total: uint64(len(l.jobs))}
	if page.Items = all; len(all) > limit {
		page.Items = all[:limit]
		page.Next = place(all[limit-1])
	}
	return page, nil
}

func (l *ledgerDouble) Firings(_ context.Context, _ string, pending bool, after string, limit int) (page ledgerapi.Page[ledgerapi.Firing], err error) {
	from, _ := strconv.Atoi(after)
	for _, f := range l.firings[from:] {
		if pending && f.DeliveredMS != 0 {
			continue
		}
		if len(page.Items) == limit {
			page.Next = fmt.Sprint(page.Items[limit-1].N)
			break
		}
		page.Items = append(page.Items, *f)
	}
	if l.reading != nil {
		l.reading()
	}
	return page, nil
}

func (l *ledgerDouble) Checkpoint(context.Context, string, string) (ledgerapi.Checkpoint, error) {
	if l.cursor == nil {
		return ledgerapi.Checkpoint{}, ledgerapi.ErrNotFound
	}
	return *l.cursor, nil
}

func (l *ledgerDouble) Record(context.Context, string, string) (ledgerapi.Record, error) {
	return ledgerapi.Record{}, ledgerapi.ErrNotFound
}

func (l *ledgerDouble) find(job string, at int64) *ledgerapi.Firing {
	return l.index[outbox.ID{Job: job, AtMS: at}]
}

// apply makes a batch or refuses it.
func (l *ledgerDouble) apply(token fence.Token, writes []ledgerapi.Write) (ledgerapi.Answer, error) {
	if token < l.token {
		return ledgerapi.Answer{}, &fence.StaleError{Stamp: fence.Stamp{Deployment: "d", Group: "g", Token: token}, Mark: fence.Mark{Token: l.token}}
	}
	if len(writes) > ledgerapi.MaxWrites {
		l.wrong = append(l.wrong, fmt.Sprintf("a batch of %d", len(writes)))
	}
	l.token = token
	a := ledgerapi.Answer{Token: token, AtMS: l.nowMS}
	for _, w := range writes {
		a.Outcomes = append(a.Outcomes, l.write(token, w))
	}
	return a, nil
}

func (l *ledgerDouble) write(token fence.Token, w ledgerapi.Write) (o ledgerapi.Outcome) {
	switch {
	case w.Tick != nil:
		n, dup := l.ticks[w.Tick.Key]
		if !dup {
			n = uint64(len(l.ticks) + 1)
			l.ticks[w.Tick.Key] = n
		}
		o.Tick = &ledgerapi.TickOutcome{N: n, Duplicate: dup}
	case w.Checkpoint != nil:
		l.cursor = &ledgerapi.Checkpoint{Value: w.Checkpoint.Value}
		o.Checkpoint = &ledgerapi.VersionOutcome{Version: 1}
	case w.Job != nil:
		l.version++
		if w.Job.Delete {
			delete(l.jobs, w.Job.Key)
		} else {
			next := w.Job.NextMS
			if old, there := l.jobs[w.Job.Key]; there && old.Schedule != "" && old.Schedule == w.Job.Schedule {
				next = min(next, old.NextMS)
			}
			l.jobs[w.Job.Key] = ledgerapi.Job{Key: w.Job.Key, Schedule: w.Job.Schedule, Misfire: w.Job.Misfire, Payload: w.Job.Payload, NextMS: next}
		}
		o.Job = &ledgerapi.JobOutcome{Version: l.version}
	case w.Fire != nil:
		o.Fire = l.fire(token, *w.Fire)
	case w.Delivered != nil:
		f := l.find(w.Delivered.Job, w.Delivered.AtMS)
		o.Delivered = &ledgerapi.DeliveredOutcome{Missing: f == nil, Duplicate: f != nil && f.DeliveredMS != 0}
		if f != nil && f.DeliveredMS == 0 {
			f.DeliveredMS, f.Worker = l.nowMS, w.Delivered.Worker
		}
	}
	return o
}

func (l *ledgerDouble) fire(token fence.Token, w ledgerapi.FireWrite) *ledgerapi.FireOutcome {
	j, there := l.jobs[w.Job]
	if !there || j.NextMS != w.DueMS {
		return &ledgerapi.FireOutcome{Moved: true}
	}
	l.judge(j, w)
	o := &ledgerapi.FireOutcome{Duplicate: !w.Skip && l.find(w.Job, w.AtMS) != nil}
	if !w.Skip && !o.Duplicate {
		f := &ledgerapi.Firing{N: uint64(len(l.firings) + 1), Job: w.Job, AtMS: w.AtMS, Token: token, FiredMS: l.nowMS, Payload: j.Payload}
		l.firings = append(l.firings, f)
		l.index[outbox.ID{Job: w.Job, AtMS: w.AtMS}] = f
	}
	if j.NextMS = w.NextMS; w.NextMS == 0 {
		delete(l.jobs, w.Job)
	} else {
		l.jobs[w.Job] = j
	}
	return o
}

// judge records a job that is fired early, and a skipped instant that is not a misfire or
// whose job wants all.
func (l *ledgerDouble) judge(j ledgerapi.Job, w ledgerapi.FireWrite) {
	if w.AtMS > l.nowMS {
		l.wrong = append(l.wrong, fmt.Sprintf("%s at %d was fired %d ms early", w.Job, w.AtMS, w.AtMS-l.nowMS))
	}
	spec, known := l.specs[j.Schedule]
	if !known {
		spec, _ = schedule.Parse(j.Schedule)
		l.specs[j.Schedule] = spec
	}
	at := w.DueMS
	for ; at != 0 && (w.NextMS == 0 || at < w.NextMS); at = spec.Next(at) {
		if at == w.AtMS && !w.Skip {
			continue
		}
		if late := l.nowMS - at; j.Misfire == ledgerapi.MisfireAll || late <= l.grace {
			l.wrong = append(l.wrong, fmt.Sprintf("%s (%s) at %d was left out, %d ms late", w.Job, j.Misfire, at, late))
		}
	}
	if at != w.NextMS {
		l.wrong = append(l.wrong, fmt.Sprintf("%s goes on at %d, and %d is next", w.Job, w.NextMS, at))
	}
}

func (l *ledgerDouble) post(token fence.Token, key, spec, misfire string, next int64) {
	_, _ = l.apply(token, []ledgerapi.Write{{Job: &ledgerapi.JobWrite{Key: key, Schedule: spec, Misfire: misfire, Payload: json.RawMessage(`{"of":"` + key + `"}`), NextMS: next}}})
}
