package catalogue

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
)

// flap is experiment 13.
func flap() experiment.Experiment {
	return experiment.Experiment{
		Name: "13", Title: "a leader's connection that comes and goes near the TTL", Seed: 13,
		Question: "Does a connection that flaps near the TTL, always that of whoever leads, bring the fleet to flap by itself?",
		Expectation: "No guarantee is broken. Only a term whose leader was cut off ends: whoever follows is not unseated by the others' recovery. Two changes are never closer together than the TTL less a beat, because with etcd a session has to expire and with Raft a follower's patience has to end first. " +
			"With etcd calls that fail are made no more often than they time out, so that an engine in trouble is not called more than one that is well; with Raft there is no engine to call, and the nodes' heartbeats have a rate of their own.",
		Trials: func(size experiment.Size) []trial.Trial {
			return both(experiment.Pick(size, 2*time.Second, 3*time.Second), experiment.Pick(size, 300.0, 2000), experiment.Pick(size, 1, 3), flapScript(experiment.Pick(size, 5*time.Second, 30*time.Second)))
		},
		Takes: func(size experiment.Size) time.Duration { return experiment.Pick(size, 20*time.Second, 4*time.Minute) },
		Judge: judgeFlap,
	}
}

// The kinds of rounds: one cut, and the whole flap with its evidence.
const (
	flapCut = "cut"
	flapAll = "flap"
)

// flapScript cuts and restores the connection of the current leader for d.
func flapScript(d time.Duration) trial.Loop {
	return trial.Loop{What: fmt.Sprintf("the leader's connection comes and goes for %v", d), Round: func(ctx context.Context, s *trial.Run, _ int, r *trial.Round) error {
		r.Kind = flapAll
		var cuts []trial.Round
		f, err := s.Inject(ctx, r, chaos.Spec{Kind: chaos.FlapLeader, For: d, Seed: s.Rand.Uint64(), Follow: true, Each: func(c chaos.Fault, _ error) {
			cuts = append(cuts, trial.Round{Kind: flapCut, Node: c.Target, Token: c.Token, Begun: c.Begun, Healed: c.Healed})
		}})
		if err != nil {
			return err
		}
		// A first attempt that hit the wrong leader may have left a cut from before the fault.
		for _, c := range cuts {
			if c.Begun >= f.Begun {
				s.Rounds = append(s.Rounds, c)
			}
		}
		r.Seen = f.Evidence
		return s.Recovered(ctx, r)
	}}
}

// leaderChanges counts the changes of leader, those whose leader had not been cut off, and the
// cuts that did not hit the leader. It also measures the times between terms.
func leaderChanges(o trial.Outcome) (ended, uncut, astray int64, between measure.Series) {
	cut := map[fence.Token]bool{}
	for _, r := range o.Rounds {
		if r.Kind == flapCut {
			cut[r.Token] = true
			if !leadsAt(o.Report.Terms, r.Token, r.Begun) {
				astray++
			}
		}
	}
	var last verdict.Term
	for _, t := range o.Report.Terms {
		if t.Began == 0 {
			continue
		}
		if last.Began > 0 {
			between = append(between, t.Began.Sub(last.Began))
			if ended++; !cut[last.Token] {
				uncut++
			}
		}
		last = t
	}
	return ended, uncut, astray, between
}

// leadsAt reports whether the newest term at an instant has this token and has not ended.
func leadsAt(terms []verdict.Term, token fence.Token, at clock.Instant) bool {
	leads := false
	for _, t := range terms {
		if t.Began > 0 && t.Began <= at {
			leads = t.Token == token && t.Ended > at
		}
	}
	return leads
}

// failedKeepAlives sums the failed keep-alives that a flap's evidence names.
func failedKeepAlives(evidence string) (sum int64) {
	for _, rest := range strings.Split(evidence, "keep-alives failed: ")[1:] {
		var n int64
		_, _ = fmt.Sscanf(rest, "%d", &n) // no number counts as none
		sum += n
	}
	return sum
}

func judgeFlap(j measure.Judge, o trial.Outcome) {
	var cuts, failed, calls int64
	var length time.Duration
	timeout := max(1, time.Duration(o.Report.Run.CallTimeoutMS)) * time.Millisecond
	for _, r := range o.Rounds {
		if r.Kind == flapAll {
			failed += failedKeepAlives(r.Seen)
			continue
		}
		cuts++
		length += r.Healed.Sub(r.Begun)
		// One call is pending when the cut begins, and the last one ends with it.
		calls += int64(r.Healed.Sub(r.Begun)/timeout) + 2
	}
	ended, uncut, astray, between := leaderChanges(o)
	least := o.TTL - time.Duration(o.Report.Run.BeatMS)*time.Millisecond
	fewest := int64(o.Trial.Rounds) // in a single round every cut may be a short one
	if fewest == 1 {
		fewest = 0
	}
	j.Count("cuts that hit whoever led", int(cuts-astray), int(cuts))
	j.Bar("changes of leader, one a cut at most", fmt.Sprint(ended), fmt.Sprintf("%d to %d", fewest, cuts), ended >= fewest && ended <= cuts && cuts > 0)
	j.None("leaders unseated that were not cut off", uncut)
	j.Bar("least time between two changes", measure.MS(between.At(0)), ">= "+measure.MS(least), len(between) == 0 || between.At(0) >= least)
	if o.Engine == trial.Etcd {
		j.AtMost("keep-alives that failed, one a timeout at most", failed, calls)
	}
	j.Row("flaps", []string{"cuts", "cut off for", "changes of leader", "of leaders that were not cut off", "least between changes", "keep-alives failed"},
		cuts, length, ended, uncut, between.At(0), failed)
}
