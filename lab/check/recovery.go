package check

import (
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/facts"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// silentWatch is what the bound of G7 adds for a watch that failed unnoticed, if a fault
// can have caused that.
const silentWatch = 12 * time.Second

// recovery is G7: while no fault is in effect, some write takes effect within every period
// as long as the bound, counted from when the last fault was healed.
func recovery(v *verdict.Verdict, f *facts.Facts) watcher {
	// quiet is a time without faults, after is the fault whose healing began it.
	type quiet struct {
		facts.Span
		after history.Place
	}
	bound := f.Run.RecoveryBound()
	if slices.ContainsFunc(f.Faults, func(x history.Fault) bool { return x.Class == history.ClassSilent }) {
		bound += silentWatch
	}
	var all []quiet
	now, after := f.Run.At, f.Run.Line
	for _, x := range f.Faults {
		if x.Counts() {
			v.Add("faults")
		}
		if x.Begun > now {
			all = append(all, quiet{facts.Span{From: now, To: x.Begun}, after})
		}
		if x.Healed >= now {
			now, after = x.Healed, x.Line
		}
	}
	healed := now < clock.Never
	if healed {
		all = append(all, quiet{facts.Span{From: now, To: clock.Never}, after})
	} else {
		v.Doubt(at{after}, "the last fault was never healed")
	}

	var (
		i         int           // the quiet time
		last, end clock.Instant // the last success in it or its beginning; the last try of all
		lastAt    history.Place
		endAt     history.Place
		judged    bool // there was a success in it
		longest   time.Duration
	)
	begin := func() {
		if judged = false; i < len(all) {
			last, lastAt = all[i].From, all[i].after
		}
	}
	begin()
	// without checks the time since the last success against the bound.
	without := func(now clock.Instant, line history.Place) {
		took := now.Sub(last)
		if took > bound {
			v.Violated(at{line, lastAt, all[i].after}, "nothing took effect for %v although no fault was in effect; the bound is %v", took, bound)
		}
		longest = max(longest, took)
	}
	// pass ends a quiet time.
	pass := func(end clock.Instant, line history.Place) {
		if without(end, line); judged || end.Sub(last) > bound {
			v.Add("quiet times")
		}
		i++
		begin()
	}
	tried := func(when clock.Instant, line history.Place, ok bool) {
		if when > end {
			end, endAt = when, line
		}
		for i < len(all) && when >= all[i].To {
			pass(all[i].To, lastAt)
		}
		if !ok || i == len(all) || when < last {
			return
		}
		v.Add("successes")
		without(when, line)
		last, lastAt, judged = when, line, true
	}
	return watcher{
		call: func(c history.Call) { tried(c.End, c.Line, c.Answered()) },
		attempt: func(a history.Attempt) {
			if a.Outcome != "" {
				tried(a.At, a.Line, a.Outcome == history.OutcomeOK)
			}
		},
		end: func() {
			if healed {
				for i < len(all)-1 {
					pass(all[i].To, lastAt)
				}
				if !judged && end.Sub(last) <= bound {
					v.Doubt(at{all[i].after}, "nothing took effect after the last fault, and the history ends %v after it, before the bound of %v", max(0, end.Sub(last)), bound)
				}
				pass(max(end, last), endAt)
			}
			v.Note = "bound " + tidy(bound) + ", longest " + tidy(longest)
		},
	}
}

// refusal is G8: while the engine has no quorum it grants nothing and shows no vacancy, and
// after the bound of belief nobody believes or writes as a leader.
func refusal(v *verdict.Verdict, f *facts.Facts) watcher {
	type outage struct {
		facts.Span
		at history.Place
	}
	// blind is when no grant may be seen, silent when nobody may believe.
	var blind, silent []outage
	var longest time.Duration // from a loss of the quorum to the end of a belief
	*v.Counter("terms") = int64(len(f.Terms))
	for _, x := range f.Faults {
		if x.Class != history.ClassQuorum {
			continue
		}
		v.Add("outages")
		lost := facts.Certain(x)
		blind = append(blind, outage{facts.Span{From: facts.Later(lost.From, f.Run.Seen()), To: lost.To}, x.Line})
		bounded := facts.Span{From: facts.Later(lost.From, f.Run.SilentAfter()), To: lost.To}
		if bounded.From < bounded.To && lost.To < clock.Never {
			v.Add("outages longer than the bound of belief")
			silent = append(silent, outage{bounded, x.Line})
		} else {
			bounded.To = 0
		}
		for _, t := range f.Terms {
			for _, part := range (facts.Span{From: max(t.Began, lost.From), To: min(t.Ended, lost.To)}).Without(f.Excused(t.Node)) {
				if part.From < part.To {
					longest = max(longest, part.To.Sub(lost.From))
				}
			}
			for _, part := range (facts.Span{From: max(t.Began, bounded.From), To: min(t.Ended, bounded.To)}).Without(f.Excused(t.Node)) {
				if part.From < part.To {
					v.Violated(at{t.BeganAt, x.Line}, "%s believes with token %d, %v after the engine lost its quorum and the bound of belief had passed", t.Node, t.Token, part.To.Sub(bounded.From))
					break
				}
			}
		}
	}
	highest := map[string]fence.Token{}
	for _, g := range f.Grants {
		v.Add("grants")
		// What an observer saw before is not a new grant.
		fresh := g.State == history.Vacant || g.State == history.Led && g.Token > highest[g.Observer]
		highest[g.Observer] = max(highest[g.Observer], g.Token)
		for _, o := range blind {
			if fresh && o.Has(g.At) {
				v.Violated(at{g.Line, o.at}, "token %d was seen to be %s while the engine had no quorum", g.Token, g.State)
			}
		}
	}
	v.Note = "bound " + tidy(f.Run.BeliefBound()) + ", longest " + tidy(longest)
	return watcher{attempt: func(a history.Attempt) {
		v.Add("attempts")
		for _, o := range silent {
			if o.Has(a.At) && !f.Paused(a.Node, a.At) {
				v.Violated(at{a.Line, o.at}, "%s writes with token %d although the engine has had no quorum for longer than the bound of belief", a.Node, a.Token)
			}
		}
	}}
}
