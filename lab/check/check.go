package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/anishathalye/porcupine"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
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

// check is a row of the table of checks.
type check struct {
	guarantee, name string
	// looked is what is counted. If nothing of the first was seen, the verdict is unknown.
	looked []string
	// timeless checks need no TTL.
	timeless bool
	start    func(*Verdict, *facts) watcher
}

// watcher is told the events that are not kept: every effect, then the calls and attempts
// in the order of time, then the end. Any of its functions may be nil.
type watcher struct {
	effect func(history.Effect)
	call   func(history.Call)
	// answer is told the answered calls, and for each the call with the largest number among
	// those that had ended before it began.
	answer  func(now history.Call, before peak)
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
		{"G6", "linearizable", []string{"calls answered", "windows"}, true, linearizable(ctx, porcupine.CheckOperationsTimeout)},
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
func Dir(ctx context.Context, path string, opts Options) (Report, error) {
	f := newFacts()
	dir, err := history.Open(path, f.damaged)
	if err == nil {
		err = f.gather(ctx, dir)
	}
	if err != nil {
		return Report{}, fmt.Errorf("check: %w", err)
	}
	if opts.Expect != nil {
		f.expect(opts.Expect)
	}
	names, err := chosen(opts, f.run.Checks)
	if err != nil {
		return Report{}, err
	}
	s := newScan(f, table(ctx, opts.DB), names)
	err = errors.Join(dir.Each(ctx, s.see, "effect"), dir.InOrder(ctx, s.see, "call", "attempt"), f.findFirstUse(ctx, dir))
	if err != nil {
		return Report{}, fmt.Errorf("check: %w", err)
	}
	r := Report{Run: f.run, Terms: s.terms(), Callers: f.callers, Faults: f.faults}
	if r.Manifest, err = dir.Verify(); err != nil {
		return Report{}, fmt.Errorf("check: %w", err)
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

// scan gives events to the checks.
type scan struct {
	*facts
	checks   []check
	results  []*Verdict
	watchers []watcher
	events   int64
	end      clock.Instant
	numbers  peaks
}

func newScan(f *facts, all []check, names []string) *scan {
	s := &scan{facts: f}
	for _, name := range names {
		c := all[slices.IndexFunc(all, func(c check) bool { return c.name == name })]
		if c.name == "history" {
			c.start = s.history
		}
		v := newVerdict(c)
		s.checks, s.results, s.watchers = append(s.checks, c), append(s.results, v), append(s.watchers, c.start(v, f))
	}
	return s
}

func newVerdict(c check) *Verdict {
	v := &Verdict{Guarantee: c.guarantee, Check: c.name}
	for _, what := range c.looked {
		v.Looked = append(v.Looked, Count{What: what})
	}
	return v
}

// tell gives an event to the checks that want its kind.
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
		s.accept(e)
		tell(s, func(w watcher) func(history.Effect) { return w.effect }, e)
	case history.Attempt:
		s.attempt(e)
		tell(s, func(w watcher) func(history.Attempt) { return w.attempt }, e)
	case history.Call:
		tell(s, func(w watcher) func(history.Call) { return w.call }, e)
		if !e.Answered() || !possible(e) {
			return
		}
		s.answer(e)
		before := s.numbers.before(e.Start)
		for _, w := range s.watchers {
			if w.answer != nil {
				w.answer(e, before)
			}
		}
		s.numbers.add(e, e.Last)
	}
}

func (s *scan) verdicts() (all []Verdict) {
	for i, w := range s.watchers {
		if w.end != nil {
			w.end()
		}
		if s.full {
			s.results[i].doubt(nil, "the history has more events, tokens or names than the limit of %d; use shorter runs", maxFacts)
		}
		all = append(all, s.results[i].decide())
	}
	return all
}

// history checks that the files are complete and of one run.
func (s *scan) history(v *Verdict, f *facts) watcher {
	return watcher{end: func() {
		*v.counter("events") = s.events + int64(len(f.terms)+len(f.grants)+len(f.seals)+len(f.faults)+f.runs)
		for _, d := range f.damage {
			v.doubt(at{d.At}, "%s", d.What)
		}
		run := at{f.run.Line}
		if f.whole() && len(f.processes) != f.run.Nodes {
			v.doubt(run, "the run has %d nodes, and the history has processes of %d", f.run.Nodes, len(f.processes))
		}
		switch needsTTL := slices.ContainsFunc(s.checks, func(c check) bool { return !c.timeless }); {
		case f.runs != 1:
			v.doubt(run, "the history describes %d runs instead of one", f.runs)
		case f.run.TTLMS <= 0 && needsTTL:
			v.doubt(run, "the run has no TTL, so no bound can be computed")
		case f.run.TTLMS <= 0:
			v.Note = "the run has no TTL, and these checks need none"
		}
	}}
}

// differences returns the fields in which two runs differ.
func differences(got, want history.Run) (all []string) {
	a, b := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range a.NumField() {
		if x, y := a.Field(i).Interface(), b.Field(i).Interface(); !reflect.DeepEqual(x, y) {
			all = append(all, fmt.Sprintf("%s: the run says %v, and the experiment requires %v", a.Type().Field(i).Name, x, y))
		}
	}
	return all
}

func sorted[V any](m map[fence.Token]V) []fence.Token { return slices.Sorted(maps.Keys(m)) }
