package experiment

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// storyEvents is what each saw, and when.
type storyEvents []storyEvent

type storyEvent struct {
	at        clock.Instant
	who, what string
}

func (t *storyEvents) add(at clock.Instant, who, format string, args ...any) {
	if at > 0 {
		*t = append(*t, storyEvent{at, who, fmt.Sprintf(format, args...)})
	}
}

// story is the first round of a pause, from the history: leader, engine, standby,
// callers and, where there are some, workers.
func story(o Outcome) Table {
	t := Table{Title: o.Name + ": the first round, in seconds since the leader stood still", Head: []string{"at", "who", "what"}}
	if len(o.Rounds) == 0 || len(o.Report.Faults) == 0 {
		return t
	}
	c, ok := changeOf(o.Report, o.Rounds[0])
	if !ok {
		return t
	}
	var all storyEvents
	stood := o.Report.Faults[0]
	all.add(stood.Begun, "leader "+c.old.Node, "has checked its term, token %d, and stands still before its write", c.old.Token)
	if c.next.Vacant < c.next.Began { // later it is what the old leader saw when it woke up
		all.add(c.next.Vacant, "engine", "its session is over: nobody leads")
	}
	all.add(c.next.Began, "standby "+c.next.Node, "leads with token %d", c.next.Token)
	all.add(c.next.FirstAttempt, "standby "+c.next.Node, "writes for the first time, the ledger being sealed")
	all.add(c.next.FirstAnswer, "callers", "are answered under token %d", c.next.Token)
	// The fault's end is read after the process was let go: what that does can be first.
	on := min(stood.Healed, c.old.Ended)
	for _, at := range c.old.RefusedAt {
		on = min(on, at)
	}
	all.add(on, "leader "+c.old.Node, "goes on")
	for _, at := range c.old.RefusedAt[:min(3, len(c.old.RefusedAt))] {
		all.add(at, "leader "+c.old.Node, "sends its write with token %d, and is refused", c.old.Token)
	}
	all.add(c.old.Ended, "leader "+c.old.Node, "knows that its term is over (%s)", c.old.Cause)
	until := max(stood.Healed, c.old.Ended).Add(time.Second)
	var workers []string
	for _, s := range o.Orders {
		if !slices.Contains(workers, s.Worker) {
			workers = append(workers, s.Worker)
		}
	}
	slices.Sort(workers)
	for _, name := range workers {
		all.worker(o, name, c, stood.Begun, until)
	}
	slices.SortStableFunc(all, func(a, b storyEvent) int { return cmp.Compare(a.at, b.at) })
	for _, m := range all {
		t.Rows = append(t.Rows, []string{fmt.Sprintf("%.3f", m.at.Sub(stood.Begun).Seconds()), m.who, m.what})
	}
	return t
}

// worker adds what one worker took and refused in a change of leader: the last order of
// the old leader, the first of the new, and whatever came of the old one afterwards.
func (t *storyEvents) worker(o Outcome, name string, c change, stood, until clock.Instant) {
	var before, last workerCounts // of the old leader; of all
	for _, s := range o.Orders {
		if s.Worker != name || s.At > until {
			continue
		}
		switch {
		case s.Token <= c.old.Token:
			before = s
		case last.Token <= c.old.Token:
			t.add(s.At, name, "takes an order of token %d, and none below from now on; meanwhile it went on with its standing order, %d times", s.Token, s.Runs-before.Runs)
		}
		if s.Refused > last.Refused {
			t.add(s.At, name, "refuses orders with a token below %d (%d in all)", s.Token, s.Refused)
		}
		last = s
	}
	if before.At > 0 {
		t.add(before.At, name, "takes its order %d, the last of token %d", before.Accepted, before.Token)
	}
	if last.Worker != "" && last.Refused == 0 {
		t.add(max(until, stood), name, "has taken %d orders (%d came twice and were done once) and refused none: the old leader sent it nothing after it woke up", last.Accepted, last.Duplicates)
	}
}
