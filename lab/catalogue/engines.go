package catalogue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
)

// The ways in which a quorum is lost.
const (
	quorumPaused = "paused"
	quorumKilled = "killed"
	splitNodes   = "split"
)

// quorum is experiment 8.
func quorum() experiment.Experiment {
	return experiment.Experiment{
		Name: "8", Title: "quorum lost and regained", Seed: 8,
		Question:    "What happens when the engine loses its quorum, and when five Raft nodes are split two to three with the leader among the two?",
		Expectation: "Without a quorum nothing is granted, and the leader stops believing within the TTL, counted from the loss. When the quorum is back somebody leads by itself, within G7's bound. In the split the three elect one, after the two have stopped believing, and all five are one fleet again when it heals.",
		Trials: func(size experiment.Size) []trial.Trial {
			on := func(kind, engine string, ttl time.Duration, round func(context.Context, *trial.Run, int, *trial.Round) error) trial.Trial {
				t := trial.New(engine, ttl, experiment.Pick(size, 300.0, 2000), experiment.Pick(size, 1, 5), trial.Loop{What: "the quorum is lost: " + kind, Round: round})
				t.Name, t.Pass = engine+"-"+kind, trial.Safe("evidence", "refusal")
				if engine == trial.Etcd {
					t.Engines = 3
				}
				return t
			}
			ttl := experiment.Pick(size, 2*time.Second, 3*time.Second)
			killed := on(quorumKilled, trial.Etcd, ttl, killQuorum)
			killed.Fleet = func(c *lab.Config) { c.RestartWait = outage(killed) }
			split := on(splitNodes, trial.Raft, time.Second, splitFleet)
			split.Nodes, split.Pass = 5, trial.Safe("evidence")
			all := []trial.Trial{on(quorumPaused, trial.Etcd, ttl, pauseQuorum), split}
			if size == experiment.Full {
				all = append(all, killed, on(quorumPaused, trial.Raft, time.Second, pauseQuorum))
			}
			return all
		},
		Takes: func(size experiment.Size) time.Duration { return experiment.Pick(size, 20*time.Second, 3*time.Minute) },
		Judge: judgeQuorum,
	}
}

// outage is how long a quorum is lost: longer than any node may believe without it.
func outage(t trial.Trial) time.Duration { return t.Describe().SilentAfter() + time.Second }

// pauseQuorum stops a majority, other members each time, and notes the time in which there
// was certainly no quorum.
func pauseQuorum(ctx context.Context, s *trial.Run, i int, r *trial.Round) error {
	r.Kind = quorumPaused
	f, err := s.Inject(ctx, r, chaos.Spec{Kind: chaos.Pause, Targets: []string{inspect.Quorum}, Nth: i, For: time.Millisecond, Until: func(ctx context.Context, _ inspect.Target) error {
		r.Begun = clock.System().Now()
		if err := s.Hold(ctx, outage(s.Trial)); err != nil {
			return err
		}
		err := s.Down(ctx, r.Node, r.Token)
		r.Healed = clock.System().Now()
		return err
	}})
	if err != nil {
		return err
	}
	return noQuorum(s, f, r)
}

// killQuorum kills a majority. The members are restarted after an outage, not before.
func killQuorum(ctx context.Context, s *trial.Run, i int, r *trial.Round) error {
	r.Kind = quorumKilled
	f, err := s.Inject(ctx, r, chaos.Spec{Kind: chaos.Kill, Targets: []string{inspect.Quorum}, Nth: i})
	if err != nil {
		return err
	}
	r.Begun, r.Healed = f.Begun, f.Begun.Add(outage(s.Trial))
	return noQuorum(s, f, r)
}

// noQuorum records the time without a quorum.
func noQuorum(s *trial.Run, f chaos.Fault, r *trial.Round) error {
	x := trial.InHistory(f, history.ClassQuorum)
	x.Name, x.PartOf, x.Begun, x.Healed, x.Set, x.Held = "no-quorum", f.Name, r.Begun, r.Healed, 0, 0
	return s.Faults.Write(x)
}

// splitFleet cuts the leader and one more node off from the others.
func splitFleet(ctx context.Context, s *trial.Run, i int, r *trial.Round) error {
	others := s.Others(r.Node)
	r.Kind, r.Other = splitNodes, others[i%len(others)]
	_, err := s.Inject(ctx, r, chaos.Spec{Kind: chaos.Partition, From: chaos.Peers, Targets: []string{r.Node, r.Other}, For: 2 * s.TTL, Until: func(ctx context.Context, _ inspect.Target) error {
		r.Begun = clock.System().Now()
		next, err := s.Sealed(ctx, r.Token)
		if err != nil {
			return err
		}
		r.Follow(next)
		err = s.Down(ctx, r.Node, r.Token)
		r.Healed = clock.System().Now()
		return err
	}})
	return err
}

func judgeQuorum(j measure.Judge, o trial.Outcome) {
	ends := o.Measure(func(r trial.Round) (time.Duration, bool) {
		old := o.Term(r.Token)
		return old.Ended.Sub(r.Begun), old.Ended >= r.Begun // a term that had ended before proves nothing
	})
	j.Series("from the loss to the end of the leader's belief", o.Name, ends)
	j.Below("the leader stops believing within the TTL", ends, o.TTL, o.Trial.Rounds)
	if o.Name == trial.Raft+"-"+splitNodes {
		j.None("leaders elected by the two", int64(o.Count(func(r trial.Round) bool {
			return slices.ContainsFunc(o.Report.Terms, func(t verdict.Term) bool {
				return t.Token > r.Token && (t.Node == r.Node || t.Node == r.Other) && r.Begun <= t.Began && t.Began <= r.Healed
			})
		})))
		return
	}
	returns := o.Measure(func(r trial.Round) (time.Duration, bool) {
		next := o.Term(r.Next)
		return max(0, next.FirstAttempt.Sub(r.Healed)), next.FirstAttempt > 0
	})
	j.Series("from the end of the fault to the next attempt to write", o.Name, returns)
	j.Below("somebody writes again", returns, o.Report.Run.RecoveryBound(), o.Trial.Rounds)
}

// memberFaults are the faults of a member of the engine, in the order of the rounds.
func memberFaults() []struct{ kind, fault string } {
	return []struct{ kind, fault string }{{"stopped", chaos.Pause}, {"killed", chaos.Kill}, {"black-holed", chaos.Partition}}
}

// member is experiment 9.
func member() experiment.Experiment {
	return experiment.Experiment{
		Name: "9", Title: "one member of the engine stopped, killed, black-holed", Seed: 9,
		Question:    "Does the leader keep its term while one of three members of the engine is away for longer than the TTL, whichever it is?",
		Expectation: "Yes, every time: keep-alives go to another member, and an election inside the engine is over before trust is. With Raft the members are the nodes, and the one that is away is a follower. Black-holed means that the nodes do not reach it: they do not with Raft, and its own peers do with etcd.",
		Trials: func(size experiment.Size) []trial.Trial {
			all := both(experiment.Pick(size, 4*time.Second, 8*time.Second), experiment.Pick(size, 300.0, 2000), experiment.Pick(size, 1, 5)*len(memberFaults()), trial.Loop{What: "one member is unavailable", Round: memberAway})
			all[0].Engines = 3
			for i := range all {
				all[i].Fleet = func(c *lab.Config) { c.RestartWait = away(all[i].TTL) }
			}
			return all
		},
		Judge: func(j measure.Judge, o trial.Outcome) {
			for _, m := range memberFaults() {
				kept := o.Count(func(r trial.Round) bool { return r.Kind == m.kind && r.Next == r.Token && r.Successor == r.Node })
				j.Count("the leader keeps its term, a member being "+m.kind, kept, o.Count(func(r trial.Round) bool { return r.Kind == m.kind }))
			}
			for i, r := range o.Rounds {
				j.Row("who was away", []string{"round", "what", "whom, and what shows it", "leader, token", "after"},
					i+1, r.Kind, r.Seen, fmt.Sprintf("%s, %d", r.Node, r.Token), fmt.Sprintf("%s, %d", r.Successor, r.Next))
			}
		},
	}
}

// away is how long a member is unavailable: longer than a term lasts without a keep-alive.
func away(ttl time.Duration) time.Duration { return ttl + 500*time.Millisecond }

func memberAway(ctx context.Context, s *trial.Run, i int, r *trial.Round) error {
	faults := memberFaults()
	n := i % len(faults)
	r.Kind = faults[n].kind
	// Every member gets every fault: one of them leads the engine.
	spec := chaos.Spec{Kind: faults[n].fault, For: away(s.TTL), Nth: i/len(faults) + n, Targets: []string{inspect.Member}}
	if s.Engine == trial.Raft {
		spec.Targets = []string{inspect.Follower}
	}
	f, err := s.Inject(ctx, r, spec)
	r.Seen = f.Target + ": " + f.Evidence
	return err
}
