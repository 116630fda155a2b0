package experiment

import (
	"cmp"
	"testing"
	"time"

	"github.com/tenurehq/tenure/app/lab/check"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// The judges of the experiments on engines, ledgers, clocks, disks and connections say
// yes to a round in which what they ask for happened, and no to one that differs from it
// in the one thing that they are there to see.
func TestJudges(t *testing.T) {
	t.Parallel()
	at := func(s float64) clock.Instant { return clock.Instant(s * float64(time.Second)) }
	term := func(token fence.Token, from, to float64, cause string) check.Term {
		return check.Term{Token: token, Began: at(from), Ended: at(to), Cause: cause, FirstAttempt: at(from), LastAttempt: at(to), Attempts: 1}
	}
	terms := func(ended float64, cause string) []check.Term {
		return []check.Term{term(1, 1, ended, cause), term(2, 8, 20, "")}
	}
	change := Round{Node: "a", Token: 1, Successor: "b", Next: 2, Begun: at(4), Healed: at(7)}
	kept := Round{Node: "a", Token: 1, Successor: "a", Next: 1, Begun: at(4), Healed: at(7)}
	after := func(s float64) Round { // the next term began that much later
		r := seen(change, "off")
		r.Begun = at(8 - s)
		return r
	}
	for _, c := range []struct {
		experiment, trial, why string
		good, bad              Round
		ended, endedBad        float64
		cause, causeBad        string // the second: if it differs
	}{
		{experiment: "3", trial: "etcd-3s", why: "it believes beside the next", good: change, bad: change, ended: 6, endedBad: 9, cause: "expired"},
		{experiment: "3", trial: "raft-1s", why: "Raft has unseated it", good: change, bad: change, ended: 6, endedBad: 6, cause: "expired", causeBad: "lost"},
		{experiment: "8", trial: "etcd-paused", why: "it believes for longer than the TTL", good: change, bad: change, ended: 6, endedBad: 7.5},
		{experiment: "8", trial: "raft-split", why: "the two elect", good: change, bad: seen(change, "among the two"), ended: 4.5, endedBad: 4.5},
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
		{experiment: "12", trial: "etcd-sync", why: "a call is answered", good: Round{Refused: true, Asked: 9}, bad: Round{Refused: true, Asked: 9, Answered: 1}, ended: 6, endedBad: 6},
		{experiment: "12", trial: "raft-no-space", why: "nobody asked", good: Round{Refused: true, Asked: 9}, bad: Round{Refused: true}, ended: 6, endedBad: 6},
		{experiment: "12", trial: "etcd-sync", why: "the ledger says nothing", good: Round{Refused: true, Asked: 9}, bad: Round{Asked: 9}, ended: 6, endedBad: 6},
	} {
		found, err := Find(c.experiment)
		if err != nil {
			t.Fatal(err)
		}
		judged := func(r Round, ended float64, cause string) bool {
			for _, trial := range found[0].Trials(Full) {
				if trial.Name != c.trial {
					continue
				}
				rounds := 1
				if c.experiment == "9" { // one by each fate
					rounds = len(memberFates())
				}
				trial.Rounds = rounds
				o := Outcome{Trial: trial, Report: check.Report{Run: trial.describe(found[0], Full), Terms: terms(ended, cause)}}
				for i := range rounds {
					r.Kind = memberFates()[i]
					o.Rounds = append(o.Rounds, r)
				}
				bars, _ := found[0].Judge([]Outcome{o})
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

func seen(r Round, what string) Round {
	r.Seen = what
	return r
}
