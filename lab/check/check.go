// Package check reads the history of a run (package history) and decides which guarantees
// held. [Dir] returns a [Report] with one [Verdict] for each check. The guarantees are those
// of docs/guarantees.md. Three more checks are "once" (every instant of a declared job fires
// exactly once), "evidence" (the history shows the effect of each fault) and "history" (the
// files are complete and the run is the one that the experiment requires).
//
// A verdict is pass, fail or unknown, and only pass is good: a check that found nothing to
// compare is unknown. A failure names file and line of the events that show it.
//
// # Limitations
//
// The checks find mistakes, losses and partial changes of a recording, as docs/fleet.md
// lists them. They do not find a forger who changes history, digests, database and result
// consistently, nor what a process did not record. What an observer may miss by design
// (package lease: a watch may skip states) does not count against a run. Checks take linear
// time, up to a logarithm of the concurrency. Calls and attempts are not kept in memory;
// everything else is, up to a limit above which the verdicts are unknown.
package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/facts"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// Options of a check.
type Options struct {
	// DB is the ledger's database, for the check "ledger": a SQLite file or a postgres URL.
	DB string
	// Checks are names of checks. Default the checks that the run names, or all.
	Checks []string
	// Ledger adds the check "ledger" if the run does not name it.
	Ledger bool
	// Expect returns the configuration and the checks that the code of the experiment
	// requires of a run. They replace those in the history; a history that differs fails the
	// check "history". At and the times of jobs are not compared, since only the run knows
	// them.
	Expect func(history.Run) (history.Run, error)
}

// at are the places of a finding.
type at = verdict.At

// check is a row of the table of checks.
type check struct {
	guarantee, name string
	// looked is what is counted. If nothing of the first was seen, the verdict is unknown.
	looked []string
	// timeless checks need no TTL.
	timeless bool
	start    func(*verdict.Verdict, *facts.Facts) watcher
}

// watcher gets the events that are not kept: every effect, then the calls and attempts in the
// order of time, then the end. Any of its functions may be nil.
type watcher struct {
	effect func(history.Effect)
	call   func(history.Call)
	// answer gets the answered calls and, for each, the call with the largest number among those
	// that had ended before it began.
	answer  func(now history.Call, before facts.Peak)
	attempt func(history.Attempt)
	end     func()
}

// table has all checks in the order of a report.
func table(ctx context.Context, db string) []check {
	return []check{
		{"G1", "token-order", []string{"grants and terms", "grants", "terms"}, true, tokenOrder},
		{"G2", "fence", []string{"effects accepted", "effects refused", "attempts acknowledged", "seals", "tokens"}, true, fencing},
		{"G3", "one-believer", []string{"terms", "attempts", "excepted"}, false, oneBeliever},
		{"G4", "no-zombie", []string{"terms", "attempts", "attempts after a pause", "attempts refused"}, false, noZombie},
		{"G5", "baton", []string{"handovers", "attempts", "excepted", "deposed"}, false, handover},
		{"G6", "sequence", []string{"calls answered", "calls failed", "calls of unknown outcome", "numbers", "tokens"}, true, sequence},
		{"G6", "linearizable", []string{"calls answered", "windows"}, true, inOneOrder(ctx, porcupine.CheckOperationsTimeout)},
		{"G6", "ledger", ledgerCounts, true, ledgerCheck(ctx, db)},
		{"G7", "recovery", []string{"quiet times", "faults", "successes"}, false, recovery},
		{"G8", "refusal", []string{"outages longer than the bound of belief", "outages", "grants", "terms", "attempts"}, false, refusal},
		{"once", "once", []string{"ticks and firings", "ticks", "firings", "jobs", "jobs that were declared", "instants not ticked"}, false, once},
		{"evidence", "evidence", []string{"faults", "kinds", "missed", "attempts"}, false, evidence},
		{"history", "history", []string{"events"}, true, nil},
	}
}

// Names returns the names of all checks in the order of a report. The last, "history", is
// always checked: it says whether the history is complete.
func Names() (names []string) {
	for _, c := range table(context.Background(), "") {
		names = append(names, c.name)
	}
	return names
}

// Dir checks a history. It returns an error if there is no history, if it cannot be read,
// or if ctx ends.
func Dir(ctx context.Context, path string, opts Options) (verdict.Report, error) {
	f := facts.New()
	dir, err := history.Open(path, f.Damaged)
	if err == nil {
		err = f.Gather(ctx, dir)
	}
	if err != nil {
		return verdict.Report{}, fmt.Errorf("check: %w", err)
	}
	if opts.Expect != nil {
		f.Expect(opts.Expect)
	}
	names, err := chosen(opts, f.Run.Checks)
	if err != nil {
		return verdict.Report{}, err
	}
	s := newScan(f, table(ctx, opts.DB), names)
	err = errors.Join(dir.Each(ctx, s.see, "effect"), dir.InOrder(ctx, s.see, "call", "attempt"), f.FindFirstUse(ctx, dir))
	if err != nil {
		return verdict.Report{}, fmt.Errorf("check: %w", err)
	}
	r := verdict.Report{Run: f.Run, Terms: f.Report(s.end), Callers: f.Callers, Faults: f.Faults}
	if r.Manifest, err = dir.Verify(); err != nil {
		return verdict.Report{}, fmt.Errorf("check: %w", err)
	}
	r.Verdicts = s.verdicts()
	return r, ctx.Err()
}

func chosen(opts Options, run []string) (names []string, err error) {
	for _, names = range [][]string{opts.Checks, run, Names()} {
		if len(names) > 0 {
			break
		}
	}
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			err = errors.Join(err, fmt.Errorf("check: unknown check %q; the checks are %v", name, Names()))
		}
	}
	add := []string{"history"}
	if opts.Ledger {
		add = append(add, "ledger")
	}
	for _, name := range add {
		if !slices.Contains(names, name) {
			names = append(slices.Clone(names), name)
		}
	}
	return names, err
}

// scan passes events to the checks.
type scan struct {
	*facts.Facts
	checks   []check
	results  []*verdict.Verdict
	watchers []watcher
	events   int64
	end      clock.Instant
	numbers  facts.Peaks
}

func newScan(f *facts.Facts, all []check, names []string) *scan {
	s := &scan{Facts: f}
	for _, name := range names {
		c := all[slices.IndexFunc(all, func(c check) bool { return c.name == name })]
		if c.name == "history" {
			c.start = s.history
		}
		v := verdict.New(c.guarantee, c.name, c.looked...)
		s.checks, s.results, s.watchers = append(s.checks, c), append(s.results, v), append(s.watchers, c.start(v, f))
	}
	return s
}

// tell passes an event to the checks that want its kind.
func tell[E any](s *scan, of func(watcher) func(E), e E) {
	for _, w := range s.watchers {
		if do := of(w); do != nil {
			do(e)
		}
	}
}

func (s *scan) see(e history.Event) {
	s.events++
	s.end = max(s.end, history.When(e))
	switch e := e.(type) {
	case history.Effect:
		if s.Whole() && e.Accepted() && !e.Applied {
			s.Accepted.Add(s.Facts, e)
		}
		tell(s, func(w watcher) func(history.Effect) { return w.effect }, e)
	case history.Attempt:
		s.Attempt(e)
		tell(s, func(w watcher) func(history.Attempt) { return w.attempt }, e)
	case history.Call:
		tell(s, func(w watcher) func(history.Call) { return w.call }, e)
		if !e.Answered() || !possible(e) {
			return
		}
		s.Answer(e)
		before := s.numbers.Before(e.Start)
		for _, w := range s.watchers {
			if w.answer != nil {
				w.answer(e, before)
			}
		}
		s.numbers.Add(e, e.Last)
	}
}

func (s *scan) verdicts() (all []verdict.Verdict) {
	for i, w := range s.watchers {
		if w.end != nil {
			w.end()
		}
		if s.Full {
			s.results[i].Doubt(nil, "the history has more events, tokens or names than the limit of %d; use shorter runs", facts.Max)
		}
		all = append(all, s.results[i].Decide())
	}
	return all
}

// history checks that the files are complete and of one run.
func (s *scan) history(v *verdict.Verdict, f *facts.Facts) watcher {
	return watcher{end: func() {
		*v.Counter("events") = s.events + int64(len(f.Terms)+len(f.Grants)+len(f.Seals)+len(f.Faults)+f.Runs)
		for _, d := range f.Damage {
			v.Doubt(at{d.At}, "%s", d.What)
		}
		run := at{f.Run.Line}
		if f.Whole() && len(f.Processes) != f.Run.Nodes {
			v.Doubt(run, "the run has %d nodes, and the history has processes of %d", f.Run.Nodes, len(f.Processes))
		}
		switch needsTTL := slices.ContainsFunc(s.checks, func(c check) bool { return !c.timeless }); {
		case f.Runs != 1:
			v.Doubt(run, "the history describes %d runs instead of one", f.Runs)
		case f.Run.TTLMS <= 0 && needsTTL:
			v.Doubt(run, "the run has no TTL, so no bound can be computed")
		case f.Run.TTLMS <= 0:
			v.Note = "the run has no TTL, and these checks need none"
		}
	}}
}

func tidy(d time.Duration) string {
	if d.Abs() >= time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Microsecond).String()
}
