package check

// once is the scheduler's promise. Of a job that was declared every instant fires once
// and none is left out; of any other none fires twice or goes back. An instant is ticked
// at most once, and the ledger's ticks are numbered without holes. Late is allowed.
// Instants at which nobody ticked are told and not judged: none is made up for, and who
// was there to tick is not known on the ledger's clock.
type once struct {
	*tally
	run   Run
	runAt Place
	jobs  map[string]*jobState
	tick  effectAt
}

type jobState struct {
	declared bool
	Job
	// due is the next instant that must fire, if it is not after LastMS.
	due int64
	// last is the last that did, 0 if none has.
	last int64
	at   Place
}

func newOnce(f *facts) *once {
	c := &once{
		tally: newTally("once", "once", "ticks and firings", "ticks", "firings", "jobs", "jobs that were declared", "instants not ticked"),
		run:   f.run, runAt: f.runAt, jobs: map[string]*jobState{},
	}
	for _, j := range f.run.Jobs {
		c.count("jobs that were declared")
		if j.EveryMS == 0 {
			j.LastMS = j.FirstMS
		}
		c.jobs[j.Key] = &jobState{declared: true, Job: j, due: j.FirstMS}
	}
	return c
}

func (c *once) effect(e Effect, at Place) {
	if e.Refused != "" && !e.Applied {
		return
	}
	switch e.What {
	case EffectTick:
		c.count("ticks and firings")
		c.count("ticks")
		c.ticked(effectAt{e, at})
	case EffectFiring:
		c.count("ticks and firings")
		c.count("firings")
		c.fired(e, at)
	}
}

func (c *once) ticked(now effectAt) {
	last := c.tick
	c.tick = now
	if last.N == 0 {
		return
	}
	switch {
	case now.N <= last.N:
		c.violated([]Place{now.at, last.at}, "tick %d stands after tick %d", now.N, last.N)
	case now.N > last.N+1:
		c.violated([]Place{now.at, last.at}, "tick %d follows tick %d: %d are missing", now.N, last.N, now.N-last.N-1)
	case now.InstantMS != 0 && now.InstantMS <= last.InstantMS:
		c.violated([]Place{now.at, last.at}, "the instant %d was ticked after %d", now.InstantMS, last.InstantMS)
	case c.run.TickMS > 0 && last.InstantMS != 0 && now.InstantMS != 0:
		c.counts["instants not ticked"] += (now.InstantMS-last.InstantMS)/c.run.TickMS - 1
	}
}

func (c *once) fired(e Effect, at Place) {
	j := c.jobs[e.Name]
	if j == nil {
		if c.tooMany(len(c.jobs), maxFacts, at) {
			return
		}
		j = &jobState{}
		c.jobs[e.Name] = j
	}
	before := []Place{at, c.runAt}
	if j.last != 0 {
		before[1] = j.at
	}
	switch {
	case j.last != 0 && e.InstantMS == j.last:
		c.violated(before, "job %s fired twice at %d", e.Name, e.InstantMS)
		return
	case j.last != 0 && e.InstantMS < j.last:
		c.violated(before, "job %s fired at %d after it had fired at %d", e.Name, e.InstantMS, j.last)
		return
	case j.declared && !j.has(e.InstantMS):
		c.violated(before, "job %s fired at %d, an instant that it does not have", e.Name, e.InstantMS)
		return
	case j.declared && j.due < e.InstantMS && j.due <= j.LastMS:
		c.violated(before, "job %s fired at %d and not at %d", e.Name, e.InstantMS, j.due)
	}
	j.last, j.at = e.InstantMS, at
	j.due = e.InstantMS + max(1, j.EveryMS)
}

func (j Job) has(instant int64) bool {
	if j.EveryMS == 0 {
		return instant == j.FirstMS
	}
	return instant >= j.FirstMS && (instant-j.FirstMS)%j.EveryMS == 0
}

func (c *once) verdict() Verdict {
	c.counts["jobs"] = int64(len(c.jobs))
	for _, job := range c.run.Jobs {
		j := c.jobs[job.Key]
		if j.due > j.LastMS {
			continue
		}
		at := []Place{c.runAt}
		if j.last != 0 {
			at = []Place{j.at, c.runAt}
		}
		c.violated(at, "job %s did not fire at %d", job.Key, j.due)
	}
	return c.tally.verdict()
}
