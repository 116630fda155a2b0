package check

import (
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
)

// silentWatch is what the bound of G7 adds for a watch that failed unnoticed, if a fault
// can have caused that.
const silentWatch = 12 * time.Second

// recovery is G7: while no fault is in effect, some write takes effect within every period
// as long as the bound, counted from when the last fault was healed.
func recovery(v *Verdict, f *facts) watcher {
	// quiet is a time without faults, after is the fault whose healing began it.
	type quiet struct {
		span
		after history.Place
	}
	bound := f.run.RecoveryBound()
	if slices.ContainsFunc(f.faults, func(x history.Fault) bool { return x.Class == history.ClassSilent }) {
		bound += silentWatch
	}
	var all []quiet
	now, after := f.run.At, f.run.Line
	for _, x := range f.faults {
		if x.Counts() {
			v.count("faults")
		}
		if x.Begun > now {
			all = append(all, quiet{span{now, x.Begun}, after})
		}
		if x.Healed >= now {
			now, after = x.Healed, x.Line
		}
	}
	healed := now < clock.Never
	if healed {
		all = append(all, quiet{span{now, clock.Never}, after})
	} else {
		v.doubt(at{after}, "the last fault was never healed")
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
			last, lastAt = all[i].from, all[i].after
		}
	}
	begin()
	// without checks the time since the last success against the bound.
	without := func(now clock.Instant, line history.Place) {
		took := now.Sub(last)
		if took > bound {
			v.violated(at{line, lastAt, all[i].after}, "nothing took effect for %v although no fault was in effect; the bound is %v", took, bound)
		}
		longest = max(longest, took)
	}
	// pass ends a quiet time.
	pass := func(end clock.Instant, line history.Place) {
		if without(end, line); judged || end.Sub(last) > bound {
			v.count("quiet times")
		}
		i++
		begin()
	}
	tried := func(when clock.Instant, line history.Place, ok bool) {
		if when > end {
			end, endAt = when, line
		}
		for i < len(all) && when >= all[i].to {
			pass(all[i].to, lastAt)
		}
		if !ok || i == len(all) || when < last {
			return
		}
		v.count("successes")
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
					pass(all[i].to, lastAt)
				}
				if !judged && end.Sub(last) <= bound {
					v.doubt(at{all[i].after}, "nothing took effect after the last fault, and the history ends %v after it, before the bound of %v", max(0, end.Sub(last)), bound)
				}
				pass(max(end, last), endAt)
			}
			v.Note = "bound " + tidy(bound) + ", longest " + tidy(longest)
		},
	}
}

// refusal is G8: while the engine has no quorum it grants nothing and shows no vacancy, and
// after the bound of belief nobody believes or writes as a leader.
func refusal(v *Verdict, f *facts) watcher {
	type outage struct {
		span
		at history.Place
	}
	// blind is when no grant may be seen, silent when nobody may believe.
	var blind, silent []outage
	var longest time.Duration // from a loss of the quorum to the end of a belief
	*v.counter("terms") = int64(len(f.terms))
	for _, x := range f.faults {
		if x.Class != history.ClassQuorum {
			continue
		}
		v.count("outages")
		lost := certain(x)
		blind = append(blind, outage{span{later(lost.from, f.run.Seen()), lost.to}, x.Line})
		bounded := span{later(lost.from, f.run.SilentAfter()), lost.to}
		if bounded.from < bounded.to && lost.to < clock.Never {
			v.count("outages longer than the bound of belief")
			silent = append(silent, outage{bounded, x.Line})
		} else {
			bounded.to = 0
		}
		for _, t := range f.terms {
			for _, part := range (span{max(t.began, lost.from), min(t.ended, lost.to)}).without(f.excused(t.node)) {
				if part.from < part.to {
					longest = max(longest, part.to.Sub(lost.from))
				}
			}
			for _, part := range (span{max(t.began, bounded.from), min(t.ended, bounded.to)}).without(f.excused(t.node)) {
				if part.from < part.to {
					v.violated(at{t.beganAt, x.Line}, "%s believes with token %d, %v after the engine lost its quorum and the bound of belief had passed", t.node, t.token, part.to.Sub(bounded.from))
					break
				}
			}
		}
	}
	highest := map[string]fence.Token{}
	for _, g := range f.grants {
		v.count("grants")
		// What an observer saw before is not a new grant.
		fresh := g.State == history.Vacant || g.State == history.Led && g.Token > highest[g.Observer]
		highest[g.Observer] = max(highest[g.Observer], g.Token)
		for _, o := range blind {
			if fresh && o.has(g.At) {
				v.violated(at{g.Line, o.at}, "token %d was seen to be %s while the engine had no quorum", g.Token, g.State)
			}
		}
	}
	v.Note = "bound " + tidy(f.run.BeliefBound()) + ", longest " + tidy(longest)
	return watcher{attempt: func(a history.Attempt) {
		v.count("attempts")
		for _, o := range silent {
			if o.has(a.At) && !f.paused(a.Node, a.At) {
				v.violated(at{a.Line, o.at}, "%s writes with token %d although the engine has had no quorum for longer than the bound of belief", a.Node, a.Token)
			}
		}
	}}
}
