package experiment

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tenurehq/tenure/clock"
)

// story is the first round of a pause, from the history: what each saw, and when.
func story(o Outcome) Table {
	t := Table{Title: o.Name + ": the first round, in seconds since the leader stood still", Head: []string{"at", "who", "what"}}
	if len(o.Rounds) == 0 || len(o.Report.Faults) == 0 {
		return t
	}
	c, ok := changeOf(o.Report, o.Rounds[0])
	if !ok {
		return t
	}
	type moment struct {
		at        clock.Instant
		who, what string
	}
	var all []moment
	add := func(at clock.Instant, who, format string, args ...any) {
		if at > 0 {
			all = append(all, moment{at, who, fmt.Sprintf(format, args...)})
		}
	}
	stood := o.Report.Faults[0]
	add(stood.Begun, "leader "+c.old.Node, "has checked its term, token %d, and stands still before its write", c.old.Token)
	add(c.next.Vacant, "engine", "its session is over: nobody leads")
	add(c.next.Began, "standby "+c.next.Node, "leads with token %d", c.next.Token)
	add(c.next.FirstAttempt, "standby "+c.next.Node, "writes for the first time, the ledger being sealed")
	add(c.next.FirstAnswer, "callers", "are answered under token %d", c.next.Token)
	add(stood.Healed, "leader "+c.old.Node, "goes on")
	for _, at := range c.old.RefusedAt[:min(3, len(c.old.RefusedAt))] {
		add(at, "leader "+c.old.Node, "sends its write with token %d, and is refused", c.old.Token)
	}
	add(c.old.Ended, "leader "+c.old.Node, "knows that its term is over (%s)", c.old.Cause)
	slices.SortStableFunc(all, func(a, b moment) int { return cmp.Compare(a.at, b.at) })
	for _, m := range all {
		t.Rows = append(t.Rows, []string{fmt.Sprintf("%.3f", m.at.Sub(stood.Begun).Seconds()), m.who, m.what})
	}
	return t
}
