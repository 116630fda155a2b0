package check

import (
	"github.com/tenurehq/tenure/lab/facts"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// once is the scheduler's guarantee. Every instant of a declared job fires exactly once; no
// instant of another job fires twice or out of order. An instant is ticked at most once,
// and the ledger's ticks are numbered without gaps. Late is allowed. Instants at which
// nobody ticked are counted only: they are not made up for.
func once(v *verdict.Verdict, f *facts.Facts) watcher {
	type state struct {
		history.Job
		declared bool
		due      int64          // the next instant that must fire, if it is not after LastMS
		last     history.Effect // the last firing
	}
	jobs := map[string]*state{}
	for _, j := range f.Run.Jobs {
		v.Add("jobs that were declared")
		if j.EveryMS == 0 {
			j.LastMS = j.FirstMS
		}
		jobs[j.Key] = &state{declared: true, Job: j, due: j.FirstMS}
	}
	var tick history.Effect
	ticked := func(now history.Effect) {
		last := tick
		tick = now
		both := at{now.Line, last.Line}
		switch {
		case last.N == 0:
		case now.N <= last.N:
			v.Violated(both, "tick %d is listed after tick %d", now.N, last.N)
		case now.N > last.N+1:
			v.Violated(both, "tick %d follows tick %d: %d are missing", now.N, last.N, now.N-last.N-1)
		case now.InstantMS != 0 && now.InstantMS <= last.InstantMS:
			v.Violated(both, "the instant %d was ticked after %d", now.InstantMS, last.InstantMS)
		case f.Run.TickMS > 0 && last.InstantMS != 0 && now.InstantMS != 0:
			*v.Counter("instants not ticked") += (now.InstantMS-last.InstantMS)/f.Run.TickMS - 1
		}
	}
	fired := func(e history.Effect) {
		j := jobs[e.Name]
		if j == nil {
			if !f.Room(len(jobs)+1, facts.Max) {
				return
			}
			j = &state{}
			jobs[e.Name] = j
		}
		places, again := at{e.Line, f.Run.Line}, j.last.InstantMS != 0
		if again {
			places[1] = j.last.Line
		}
		since := e.InstantMS - j.FirstMS
		switch {
		case again && e.InstantMS == j.last.InstantMS:
			v.Violated(places, "job %s fired twice at %d", e.Name, e.InstantMS)
			return
		case again && e.InstantMS < j.last.InstantMS:
			v.Violated(places, "job %s fired at %d after it had fired at %d", e.Name, e.InstantMS, j.last.InstantMS)
			return
		case j.declared && (since < 0 || j.EveryMS == 0 && since != 0 || j.EveryMS != 0 && since%j.EveryMS != 0):
			v.Violated(places, "job %s fired at %d, an instant that it does not have", e.Name, e.InstantMS)
			return
		case j.declared && j.due < e.InstantMS && j.due <= j.LastMS:
			v.Violated(places, "job %s fired at %d and not at %d", e.Name, e.InstantMS, j.due)
		}
		j.last, j.due = e, e.InstantMS+max(1, j.EveryMS)
	}
	return watcher{
		effect: func(e history.Effect) {
			do := map[string]func(history.Effect){history.EffectTick: ticked, history.EffectFiring: fired}[e.What]
			if do == nil || !e.Accepted() {
				return
			}
			v.Add("ticks and firings")
			v.Add(e.What + "s")
			do(e)
		},
		end: func() {
			*v.Counter("jobs") = int64(len(jobs))
			for _, job := range f.Run.Jobs {
				j := jobs[job.Key]
				if j.due > j.LastMS {
					continue
				}
				places := at{f.Run.Line}
				if j.last.InstantMS != 0 {
					places = at{j.last.Line, f.Run.Line}
				}
				v.Violated(places, "job %s did not fire at %d", job.Key, j.due)
			}
		},
	}
}
