package check

import (
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// refusal is G8: while the engine has no quorum nothing is granted or said to be
// vacant, and after the bound of belief nobody believes or writes as a leader.
type refusal struct {
	*tally
	f *facts
	// silent are the times in which nobody may believe.
	silent []outage
	// longest is how long after a loss somebody believed.
	longest time.Duration
}

type outage struct {
	span
	at Place
}

func newRefusal(f *facts) *refusal {
	c := &refusal{tally: newTally("G8", "refusal", "outages longer than the bound of belief", "outages", "grants", "terms", "attempts"), f: f}
	c.counts["terms"] = int64(len(f.terms))
	var all []outage
	for _, x := range f.faults {
		if x.Class != ClassQuorum {
			continue
		}
		c.count("outages")
		lost := x.surely()
		all = append(all, outage{span{later(lost.from, f.run.seen()), lost.to}, x.at})
		for _, t := range f.terms {
			for _, part := range (span{max(t.began, lost.from), min(t.ended, lost.to)}).less(f.excused(t.node)) {
				if part.from < part.to {
					c.longest = max(c.longest, part.to.Sub(lost.from))
				}
			}
		}
		if from := later(lost.from, f.run.SilentAfter()); from < lost.to && lost.to < clock.Never {
			c.count("outages longer than the bound of belief")
			c.silent = append(c.silent, outage{span{from, lost.to}, x.at})
		}
	}
	c.grants(all)
	for _, t := range f.terms {
		for _, o := range c.silent {
			for _, part := range (span{max(t.began, o.from), min(t.ended, o.to)}).less(f.excused(t.node)) {
				if part.from < part.to {
					c.violated([]Place{t.beganAt, o.at}, "%s believes with token %d, %v after the engine lost its quorum and the bound of belief had passed", t.node, t.token, part.to.Sub(o.from))
					break
				}
			}
		}
	}
	return c
}

func (c *refusal) verdict() Verdict {
	c.v.Note = "bound " + tidy(c.f.run.beliefBound()) + ", longest " + tidy(c.longest)
	return c.tally.verdict()
}

func (c *refusal) grants(outages []outage) {
	highest := map[string]fence.Token{}
	for _, g := range c.f.grants {
		c.count("grants")
		// What an observer has been told already is no new grant.
		fresh := g.State == Vacant || g.State == Led && g.Token > highest[g.Observer]
		highest[g.Observer] = max(highest[g.Observer], g.Token)
		for _, o := range outages {
			if fresh && o.from <= g.At && g.At < o.to {
				c.violated([]Place{g.at, o.at}, "token %d was seen to be %s while the engine had no quorum", g.Token, g.State)
			}
		}
	}
}

func (c *refusal) attempt(a Attempt, at Place) {
	c.count("attempts")
	for _, o := range c.silent {
		if o.from <= a.At && a.At < o.to && !c.f.paused(a.Node, a.At) {
			c.violated([]Place{at, o.at}, "%s writes with token %d although the engine has had no quorum for longer than belief lasts", a.Node, a.Token)
		}
	}
}
