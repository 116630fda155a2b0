package catalogue

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
)

// The bars of the experiments on engines, ledgers, clocks, disks and connections are met by a
// good round, and missed by one that differs in the one thing that the bar is about.
func TestJudges(t *testing.T) {
	t.Parallel()
	at := func(s float64) clock.Instant { return clock.Instant(s * float64(time.Second)) }
	term := func(token fence.Token, from, to float64, cause string) verdict.Term {
		return verdict.Term{Token: token, Began: at(from), Ended: at(to), Cause: cause, FirstAttempt: at(from), LastAttempt: at(to), Attempts: 1}
	}
	terms := func(ended float64, cause string) []verdict.Term {
		all := []verdict.Term{term(1, 1, ended, cause), term(2, 8, 20, "")}
		all[0].Node, all[1].Node = "a", "b"
		return all
	}
	change := trial.Round{Node: "a", Token: 1, Successor: "b", Next: 2, Begun: at(4), Healed: at(7)}
	kept := trial.Round{Node: "a", Token: 1, Successor: "a", Next: 1, Begun: at(4), Healed: at(7)}
	split := func(beside string) trial.Round {
		r := change
		r.Other, r.Healed = beside, at(9)
		return r
	}
	after := func(s float64) trial.Round { // the next term began that much later
		r := seen(change, "off")
		r.Begun = at(8 - s)
		return r
	}
	for _, c := range []struct {
		experiment, trial, why string
		good, bad              trial.Round
		ended, endedBad        float64
		cause, causeBad        string // the second: if it differs
	}{
		{experiment: "3", trial: "etcd-3s", why: "it believes beside the next", good: change, bad: change, ended: 6, endedBad: 9, cause: "expired"},
		{experiment: "3", trial: "raft-1s", why: "Raft has unseated it", good: change, bad: change, ended: 6, endedBad: 6, cause: "expired", causeBad: "lost"},
		{experiment: "8", trial: "etcd-paused", why: "it believes for longer than the TTL", good: change, bad: change, ended: 6, endedBad: 7.5},
		{experiment: "8", trial: "raft-split", why: "the two elect", good: split("c"), bad: split("b"), ended: 4.5, endedBad: 4.5},
		{experiment: "8", trial: "raft-split", why: "it no longer led", good: split("c"), bad: split("c"), ended: 4.5, endedBad: 3.5},
		{experiment: "9", trial: "etcd-8s", why: "the term is lost", good: kept, bad: change, ended: 6, endedBad: 6},
		{experiment: "10", trial: "etcd-3s", why: "the term is lost", good: kept, bad: change, ended: 6, endedBad: 6},
		{experiment: "10", trial: "raft-2s-long", why: "it does not step down", good: change, bad: kept, ended: 6, endedBad: 6, cause: "resigned"},
		{experiment: "10", trial: "etcd-2s-long", why: "it does not step down", good: change, bad: kept, ended: 6, endedBad: 6, cause: "unhealthy"},
		{experiment: "11", trial: "etcd-200ms", why: "it believes beside the next", good: after(3), bad: after(3), ended: 6, endedBad: 9, cause: "expired"},
		{experiment: "11", trial: "etcd-200ms", why: "no clock was seen off", good: after(3), bad: seen(after(3), ""), ended: 6, endedBad: 6, cause: "expired"},
		{experiment: "11", trial: "etcd-200ms", why: "the failover takes too long", good: after(3.9), bad: after(4.1), ended: 6, endedBad: 6, cause: "expired"},
		{experiment: "11", trial: "raft-200ms", why: "the failover takes too long", good: after(1.4), bad: after(1.6), ended: 6, endedBad: 6, cause: "expired"},
		{experiment: "11", trial: "raft-200ms", why: "Raft has unseated it", good: after(1.4), bad: after(1.4), ended: 6, endedBad: 6, cause: "expired", causeBad: "lost"},
		{experiment: "11", trial: "raft-beyond", why: "its clock did not reach its trust", good: after(9), bad: after(9), ended: 6, endedBad: 6, cause: "lost", causeBad: "expired"},
		{experiment: "11", trial: "etcd-beyond", why: "no clock was seen off", good: after(9), bad: seen(after(9), ""), ended: 9, endedBad: 9, cause: "expired"},
		{experiment: "12", trial: "etcd-sync", why: "a call is answered", good: trial.Round{Refused: true, Asked: 9}, bad: trial.Round{Refused: true, Asked: 9, Answered: 1}, ended: 6, endedBad: 6},
		{experiment: "12", trial: "raft-no-space", why: "nobody asked", good: trial.Round{Refused: true, Asked: 9}, bad: trial.Round{Refused: true}, ended: 6, endedBad: 6},
		{experiment: "12", trial: "etcd-sync", why: "the ledger says nothing", good: trial.Round{Refused: true, Asked: 9}, bad: trial.Round{Asked: 9}, ended: 6, endedBad: 6},
	} {
		found, err := Find(c.experiment)
		if err != nil {
			t.Fatal(err)
		}
		judged := func(r trial.Round, ended float64, cause string) bool {
			for _, tr := range found[0].Trials(experiment.Full) {
				if tr.Name != c.trial {
					continue
				}
				rounds := 1
				if c.experiment == "9" { // one by each fault
					rounds = len(memberFaults())
				}
				tr.Rounds = rounds
				o := trial.Outcome{Trial: tr, Report: verdict.Report{Run: found[0].Describe(tr, experiment.Full), Terms: terms(ended, cause)}}
				for i := range rounds {
					r.Kind = memberFaults()[i].kind
					o.Rounds = append(o.Rounds, r)
				}
				bars := barsOf(found[0], o)
				ok := len(bars) > 0
				for _, b := range bars {
					ok = ok && b.OK
				}
				return ok
			}
			t.Fatalf("experiment %s has no trial %s", c.experiment, c.trial)
			return false
		}
		if !judged(c.good, c.ended, c.cause) {
			t.Errorf("experiment %s, %s: no to a good round (%s)", c.experiment, c.trial, c.why)
		}
		if judged(c.bad, c.endedBad, cmp.Or(c.causeBad, c.cause)) {
			t.Errorf("experiment %s, %s: yes although %s", c.experiment, c.trial, c.why)
		}
	}
}

func seen(r trial.Round, what string) trial.Round {
	r.Seen = what
	return r
}

// A handover to another node than the named one, or by letting the session expire, misses a
// bar.
func TestJudgeHandover(t *testing.T) {
	t.Parallel()
	short := func(change func(*trial.Outcome)) (names []string) {
		o := trial.Outcome{Trial: trial.Trial{Name: "x", TTL: 2 * sec, Rounds: 2}}
		o.Report.Run.BeatMS = 500
		o.Rounds = []trial.Round{
			{Kind: stepDown, Node: "a", Token: 1, Successor: "b", Next: 2, AskedAt: at(9 * sec)},
			{Kind: transfer, Node: "b", Token: 2, Successor: "c", Next: 3, Other: "c", AskedAt: at(19 * sec)},
		}
		for i := range 3 {
			from := at(time.Duration(i) * 10 * sec)
			o.Report.Terms = append(o.Report.Terms, verdict.Term{Token: token(i + 1), Attempts: 9, FirstAttempt: from, LastAttempt: from.Add(9100 * time.Millisecond)})
		}
		change(&o)
		bars := barsOf(handover(), o)
		for _, b := range bars {
			if !b.OK {
				names = append(names, b.Name)
			}
		}
		return names
	}
	for want, change := range map[string]func(*trial.Outcome){
		"[]":                                         func(*trial.Outcome) {},
		"[x: gap of at least 0]":                     func(o *trial.Outcome) { o.Report.Terms[1].FirstAttempt = at(9050 * time.Millisecond) },
		"[x: nobody waits for a TTL]":                func(o *trial.Outcome) { o.Report.Terms[1].FirstAttempt = at(10200 * time.Millisecond) },
		"[x: handed to whom it was transferred]":     func(o *trial.Outcome) { o.Rounds[1].Successor = "a" },
		"[x: protected writes stop within one beat]": func(o *trial.Outcome) { o.Rounds[0].AskedAt = at(8 * sec) },
	} {
		if got := fmt.Sprint(short(change)); got != want {
			t.Errorf("missed %s, want %s", got, want)
		}
	}
}
