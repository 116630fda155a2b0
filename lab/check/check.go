package check

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// Options of a check.
type Options struct {
	// DB is the ledger's database, for the check "ledger": a SQLite file or a postgres
	// URL.
	DB string
	// Checks are names of checks. Default those that the run names, or all.
	Checks []string
	// Ledger makes the check "ledger" too, if the run does not name it.
	Ledger bool
	// Expect, if given, says what the code of the experiment requires of a run: its
	// configuration and its checks. They are used instead of what the history says, and a
	// history that says something else is not whole. At and the times of jobs are not
	// compared, since only the run knows them.
	Expect func(Run) (Run, error)
}

// Names are those of all checks, in the order of a report: the guarantees' and, last,
// that the history is whole, which is always checked.
func Names() []string {
	return []string{
		"token-order", "fence", "one-believer", "no-zombie", "baton", "sequence", "linearizable", "ledger",
		"recovery", "refusal", "once", "evidence", "history",
	}
}

// Dir checks a history. An error means that there is none, that it cannot be read, or
// that ctx ended.
func Dir(ctx context.Context, dir string, opts Options) (Report, error) {
	f, err := gather(ctx, dir)
	if err != nil {
		return Report{}, err
	}
	if opts.Expect != nil {
		f.expect(opts.Expect)
	}
	checks, err := chosen(opts.Checks, f.run.Checks)
	if err != nil {
		return Report{}, err
	}
	if opts.Ledger && !slices.Contains(checks, "ledger") {
		checks = append(slices.Clone(checks), "ledger")
	}
	s := newScan(f)
	if slices.Contains(checks, "ledger") {
		s.ledger = readLedger(ctx, opts.DB, f.run.Group)
	}
	if err := s.read(ctx, dir); err != nil {
		return Report{}, err
	}
	digest, err := manifested(dir, f.damaged)
	if err != nil {
		return Report{}, err
	}
	verdicts := map[string]func() Verdict{
		"token-order":  func() Verdict { return tokenOrder(f) },
		"fence":        s.fencing.verdict,
		"one-believer": s.believers.verdict,
		"no-zombie":    s.zombies.verdict,
		"baton":        s.baton.verdict,
		"sequence":     s.sequence.verdict,
		"linearizable": func() Verdict { return s.linear.verdict(ctx) },
		"ledger":       func() Verdict { return s.ledger.verdict() },
		"recovery":     s.recovery.verdict,
		"refusal":      s.refusal.verdict,
		"once":         s.once.verdict,
		"evidence":     s.evidence.verdict,
		"history":      func() Verdict { return s.history(checks) },
	}
	r := Report{Run: f.run, Manifest: digest, Terms: s.terms(), Callers: s.sequence.callers}
	for _, x := range f.faults {
		r.Faults = append(r.Faults, x.Fault)
	}
	for _, name := range checks {
		r.Verdicts = append(r.Verdicts, verdicts[name]())
	}
	if err := ctx.Err(); err != nil {
		return Report{}, err
	}
	return r, nil
}

func chosen(asked, run []string) ([]string, error) {
	if len(asked) == 0 {
		asked = run
	}
	if len(asked) == 0 {
		return Names(), nil
	}
	var unknown []error
	for _, name := range asked {
		if !slices.Contains(Names(), name) {
			unknown = append(unknown, fmt.Errorf("check: there is no check %q; there are %v", name, Names()))
		}
	}
	if !slices.Contains(asked, "history") {
		asked = append(slices.Clone(asked), "history")
	}
	return asked, errors.Join(unknown...)
}

// expect replaces what the history says of its run by what the experiment requires.
func (f *facts) expect(require func(Run) (Run, error)) {
	want, err := require(f.run)
	if err != nil {
		f.damaged(&historyError{f.runAt, err.Error()})
		f.run.Checks = nil // all of them
		return
	}
	got := f.run
	same := len(got.Jobs) == len(want.Jobs)
	for i := 0; same && i < len(got.Jobs); i++ {
		same = got.Jobs[i].EveryMS == want.Jobs[i].EveryMS && got.Jobs[i].FirstMS > 0 && (got.Jobs[i].EveryMS == 0 || got.Jobs[i].LastMS >= got.Jobs[i].FirstMS)
	}
	if !same {
		f.damaged(&historyError{f.runAt, "jobs: not those of the experiment"})
	}
	want.At, want.Jobs = got.At, got.Jobs
	a, b := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range a.NumField() {
		if x, y := a.Field(i).Interface(), b.Field(i).Interface(); !reflect.DeepEqual(x, y) {
			f.damaged(&historyError{f.runAt, fmt.Sprintf("%s: the run says %v, and the experiment requires %v", a.Type().Field(i).Name, x, y)})
		}
	}
	f.run = want
}

// scan is all that is told the events which are not kept.
type scan struct {
	f         *facts
	fencing   *fencing
	believers *believers
	zombies   *zombies
	baton     *baton
	sequence  *sequence
	linear    *linear
	ledger    *kept // nil if it is not asked
	recovery  *recovery
	refusal   *refusal
	once      *once
	evidence  *evidence
	lines     int64
	end       clock.Instant
}

func newScan(f *facts) *scan {
	return &scan{
		f: f, fencing: newFencing(f), believers: newBelievers(f), zombies: newZombies(f), baton: newBaton(f),
		sequence: newSequence(), linear: newLinear(), recovery: newRecovery(f), refusal: newRefusal(f),
		once: newOnce(f), evidence: newEvidence(f),
	}
}

func (s *scan) read(ctx context.Context, dir string) error {
	effect := func(e Event, at Place) error {
		s.lines++
		s.fencing.effect(e.(Effect), at)
		s.ledger.effect(e.(Effect), at)
		s.once.effect(e.(Effect), at)
		return nil
	}
	if err := each(ctx, dir, func(kind string) bool { return kind == "effect" }, effect, s.f.damaged); err != nil {
		return err
	}
	if s.f.whole() {
		s.ledger.complete()
		s.sequence.took = &s.fencing.took
	}
	see := func(e Event, at Place) {
		s.lines++
		s.end = max(s.end, e.when())
		switch e := e.(type) {
		case Call:
			s.recovery.tried(e.End, at, e.numbers())
			if now, before, answered := s.sequence.call(e, at); answered {
				s.linear.call(ctx, now, before)
				s.ledger.call(now)
			}
		case Attempt:
			if e.Outcome != "" {
				s.recovery.tried(e.At, at, e.Outcome == OutcomeOK)
			}
			s.fencing.attempt(e, at)
			s.believers.attempt(e, at)
			s.zombies.attempt(e, at)
			s.baton.attempt(e, at)
			s.refusal.attempt(e, at)
			s.evidence.attempt(e, at)
		}
	}
	if err := ordered(ctx, dir, func(kind string) bool { return kind == "call" || kind == "attempt" }, see, s.f.damaged); err != nil {
		return err
	}
	return s.sequence.resolve(ctx, dir)
}

// timeless are the checks that need no bound.
func timeless(name string) bool {
	return slices.Contains([]string{"token-order", "fence", "sequence", "linearizable", "ledger", "history"}, name)
}

// history says whether the files are whole, and of one run.
func (s *scan) history(checks []string) Verdict {
	t := newTally("history", "history", "events")
	t.counts["events"] = s.lines + int64(len(s.f.terms)+len(s.f.grants)+len(s.f.seals)+len(s.f.faults)+s.f.runs)
	for _, b := range s.f.broken {
		t.doubt([]Place{b.at}, "%s", b.what)
	}
	if s.f.whole() && len(s.f.processes) != s.f.run.Nodes {
		t.doubt([]Place{s.f.runAt}, "the run has %d nodes, and the history has processes of %d", s.f.run.Nodes, len(s.f.processes))
	}
	switch bound := slices.ContainsFunc(checks, func(name string) bool { return !timeless(name) }); {
	case s.f.runs != 1:
		t.doubt([]Place{s.f.runAt}, "%d runs are described, and a history is of one", s.f.runs)
	case s.f.run.TTLMS <= 0 && bound:
		t.doubt([]Place{s.f.runAt}, "the run has no TTL: no bound can be computed")
	case s.f.run.TTLMS <= 0:
		t.v.Note = "the run has no TTL, and needs none for these checks"
	}
	return t.verdict()
}

func (s *scan) terms() []Term {
	all := map[fence.Token]*Term{}
	get := func(token fence.Token) *Term {
		if all[token] == nil {
			all[token] = &Term{Token: token}
		}
		return all[token]
	}
	for _, t := range s.f.terms {
		s.end = max(s.end, t.began)
	}
	for _, t := range s.f.terms {
		x := get(t.token)
		x.Node, x.Began, x.Ended, x.Cause = t.node, t.began, t.ended, t.cause
		if x.Ended == clock.Never {
			x.Ended = s.end
		}
	}
	for token, a := range s.baton.spans {
		x := get(token)
		x.FirstAttempt, x.LastAttempt, x.Attempts, x.Refused = a.first.At, a.last.At, a.n, a.refused
		for _, r := range a.refusedAt {
			x.RefusedAt = append(x.RefusedAt, r.At)
		}
		if x.Node == "" {
			x.Node = a.first.Node
		}
	}
	for token, n := range s.sequence.byToken {
		x := get(token)
		x.FirstAnswer, x.LastAnswer, x.Answers = n.first, n.last, n.n
	}
	// A vacancy names the token that was, and the term after it is the one that ended it.
	vacant := map[fence.Token]clock.Instant{}
	for _, g := range s.f.grants {
		switch _, seen := vacant[g.Token]; {
		case g.State == Vacant && (!seen || vacant[g.Token] == 0):
			vacant[g.Token] = g.At
		case g.State == Led && !seen:
			vacant[g.Token] = 0
		}
	}
	// A grant whose term never began ended no vacancy.
	began := map[fence.Token]bool{}
	for _, t := range s.f.terms {
		began[t.token] = true
	}
	granted := sorted(vacant)
	for token, x := range all {
		i, _ := slices.BinarySearch(granted, token)
		for i--; i >= 0; i-- {
			if at := vacant[granted[i]]; at > 0 {
				x.Vacant = at
			}
			if began[granted[i]] {
				break
			}
		}
	}
	terms := make([]Term, 0, len(all))
	for _, token := range sorted(all) {
		terms = append(terms, *all[token])
	}
	return terms
}
