package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/check"
)

// flap is experiment 13.
func flap() Experiment {
	return Experiment{
		Name: "13", Title: "a leader's connection that comes and goes near the TTL", Seed: 13,
		Question: "Does a connection that flaps near the TTL, always that of whoever leads, bring the fleet to flap by itself?",
		Expectation: "No guarantee is broken. Only a term whose leader was cut off ends: whoever follows is not unseated by the others' recovery. Two changes are never closer together than the TTL less a beat, because with etcd a session has to expire and with Raft a follower's patience has to end first. " +
			"With etcd calls that fail are made no more often than they time out, so that an engine in trouble is not called more than one that is well; with Raft there is no engine to call, and the nodes' heartbeats have a rate of their own.",
		Trials: func(size Size) []Trial {
			script := flapScript(pick(size, 5*time.Second, 30*time.Second))
			return []Trial{
				newTrial(etcdEngine, pick(size, 2*time.Second, 3*time.Second), pick(size, 300.0, 2000), pick(size, 1, 3), script),
				newTrial(raftEngine, time.Second, pick(size, 300.0, 2000), pick(size, 1, 3), script),
			}
		},
		Takes: func(size Size) time.Duration { return pick(size, 20*time.Second, 4*time.Minute) },
		Judge: judgeFlap,
	}
}

// A round that is one cut, and a round that is the whole of them, whose evidence it has.
const (
	flapCut = "cut"
	flapAll = "flap"
)

// flapScript lets the connection of whoever leads come and go for d.
func flapScript(d time.Duration) loop {
	return loop{what: fmt.Sprintf("the leader's connection comes and goes for %v", d), do: func(ctx context.Context, s *trialRun, _ int, r *Round) error {
		r.Kind = flapAll
		var cuts []Round
		f, err := s.inject(ctx, r, chaos.Spec{Kind: chaos.FlapLeader, For: d, Seed: s.rng.Uint64(), Follow: true, Each: func(c chaos.Fault, _ error) {
			cuts = append(cuts, Round{Kind: flapCut, Node: c.Target, Token: uint64(c.Token), Begun: c.Begun, Healed: c.Healed})
		}})
		if err != nil {
			return err
		}
		// Of an attempt that hit the wrong leader there may be a cut before the fault began.
		for _, c := range cuts {
			if c.Begun >= f.Begun {
				s.rounds = append(s.rounds, c)
			}
		}
		r.Seen = f.Evidence
		return s.recovered(ctx, r)
	}}
}

// unseated are the terms that ended while connections came and went, as far as another
// followed, and those among them whose leader had not been cut off. Cuts are counted that
// did not hit whoever led then.
func unseated(o Outcome) (ended, uncut, astray int64) {
	cut := map[uint64]bool{}
	for _, r := range o.Rounds {
		if r.Kind == flapCut {
			cut[r.Token] = true
			if !leadsAt(o.Report.Terms, r.Token, r.Begun) {
				astray++
			}
		}
	}
	var last *check.Term
	for i := range o.Report.Terms {
		if o.Report.Terms[i].Began == 0 {
			continue
		}
		if last != nil {
			if ended++; !cut[uint64(last.Token)] {
				uncut++
			}
		}
		last = &o.Report.Terms[i]
	}
	return ended, uncut, astray
}

// leadsAt reports whether a token is that of the newest term at an instant, which has
// not ended.
func leadsAt(terms []check.Term, token uint64, at clock.Instant) bool {
	leads := false
	for _, t := range terms {
		if t.Began > 0 && t.Began <= at {
			leads = uint64(t.Token) == token && t.Ended > at
		}
	}
	return leads
}

// apart are the times between the beginnings of two terms.
func apart(terms []check.Term) (s series) {
	var last clock.Instant
	for _, t := range terms {
		if t.Began > 0 && last > 0 {
			s = append(s, t.Began.Sub(last))
		}
		if t.Began > 0 {
			last = t.Began
		}
	}
	return s
}

func judgeFlap(all []Outcome) (bars []Threshold, _ []Table) {
	t := Table{Title: "flaps", Head: []string{"trial", "cuts", "cut off for", "changes of leader", "of leaders that were not cut off", "least between changes", "keep-alives failed"}}
	for _, o := range all {
		var cuts, failed, calls int64
		var length time.Duration
		timeout := max(1, time.Duration(o.Report.Run.CallTimeoutMS)) * time.Millisecond
		for _, r := range o.Rounds {
			if r.Kind == flapAll {
				failed += sumAfter(r.Seen, "keep-alives failed")
				continue
			}
			cuts++
			length += r.Healed.Sub(r.Begun)
			// One is under way when the cut begins, and the last ends with it.
			calls += int64(r.Healed.Sub(r.Begun)/timeout) + 2
		}
		ended, uncut, astray := unseated(o)
		least := o.TTL - time.Duration(o.Report.Run.BeatMS)*time.Millisecond
		between := apart(o.Report.Terms)
		few := int64(o.Trial.Rounds) // in a single round every cut may have been a short one
		if few == 1 {
			few = 0
		}
		bars = append(bars,
			count(o.Name+": cuts that hit whoever led", int(cuts-astray), int(cuts)),
			Threshold{Name: o.Name + ": changes of leader, one a cut at most", Value: fmt.Sprint(ended), Bar: fmt.Sprintf("%d to %d", few, cuts), OK: ended >= few && ended <= cuts && cuts > 0},
			none(o.Name+": leaders unseated that were not cut off", uncut),
			Threshold{Name: o.Name + ": least time between two changes", Value: ms(between.at(0)), Bar: ">= " + ms(least), OK: len(between) == 0 || between.at(0) >= least})
		if o.Engine == etcdEngine {
			bars = append(bars, atMost(o.Name+": keep-alives that failed, one a timeout at most", failed, calls))
		}
		t.add(o.Name, cuts, length, ended, uncut, between.at(0), failed)
	}
	return bars, []Table{t}
}
