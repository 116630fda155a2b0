package check

import "github.com/tenurehq/tenure/lab/history"

// once is the scheduler's guarantee. Every instant of a declared job fires exactly once; no
// instant of another job fires twice or out of order. An instant is ticked at most once,
// and the ledger's ticks are numbered without gaps. Late is allowed. Instants at which
// nobody ticked are counted only: they are not made up for.
func once(v *Verdict, f *facts) watcher {
	type state struct {
		history.Job
		declared bool
		due      int64          // the next instant that must fire, if it is not after LastMS
		last     history.Effect // the last firing
	}
	jobs := map[string]*state{}
	for _, j := range f.run.Jobs {
		v.count("jobs that were declared")
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
			v.violated(both, "tick %d is listed after tick %d", now.N, last.N)
		case now.N > last.N+1:
			v.violated(both, "tick %d follows tick %d: %d are missing", now.N, last.N, now.N-last.N-1)
		case now.InstantMS != 0 && now.InstantMS <= last.InstantMS:
			v.violated(both, "the instant %d was ticked after %d", now.InstantMS, last.InstantMS)
		case f.run.TickMS > 0 && last.InstantMS != 0 && now.InstantMS != 0:
			*v.counter("instants not ticked") += (now.InstantMS-last.InstantMS)/f.run.TickMS - 1
		}
	}
	fired := func(e history.Effect) {
		j := jobs[e.Name]
		if j == nil {
			if !f.room(len(jobs)+1, maxFacts) {
				return
			}
			j = &state{}
			jobs[e.Name] = j
		}
		places, again := at{e.Line, f.run.Line}, j.last.InstantMS != 0
		if again {
			places[1] = j.last.Line
		}
		since := e.InstantMS - j.FirstMS
		switch {
		case again && e.InstantMS == j.last.InstantMS:
			v.violated(places, "job %s fired twice at %d", e.Name, e.InstantMS)
			return
		case again && e.InstantMS < j.last.InstantMS:
			v.violated(places, "job %s fired at %d after it had fired at %d", e.Name, e.InstantMS, j.last.InstantMS)
			return
		case j.declared && (since < 0 || j.EveryMS == 0 && since != 0 || j.EveryMS != 0 && since%j.EveryMS != 0):
			v.violated(places, "job %s fired at %d, an instant that it does not have", e.Name, e.InstantMS)
			return
		case j.declared && j.due < e.InstantMS && j.due <= j.LastMS:
			v.violated(places, "job %s fired at %d and not at %d", e.Name, e.InstantMS, j.due)
		}
		j.last, j.due = e, e.InstantMS+max(1, j.EveryMS)
	}
	return watcher{
		effect: func(e history.Effect) {
			do := map[string]func(history.Effect){history.EffectTick: ticked, history.EffectFiring: fired}[e.What]
			if do == nil || !e.Accepted() {
				return
			}
			v.count("ticks and firings")
			v.count(e.What + "s")
			do(e)
		},
		end: func() {
			*v.counter("jobs") = int64(len(jobs))
			for _, job := range f.run.Jobs {
				j := jobs[job.Key]
				if j.due > j.LastMS {
					continue
				}
				places := at{f.run.Line}
				if j.last.InstantMS != 0 {
					places = at{j.last.Line, f.run.Line}
				}
				v.violated(places, "job %s did not fire at %d", job.Key, j.due)
			}
		},
	}
}
