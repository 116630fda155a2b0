package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/history"
)

// The ways in which a quorum is lost.
const (
	quorumPaused = "paused"
	quorumKilled = "killed"
	splitNodes   = "split"
)

// quorum is experiment 8.
func quorum() Experiment {
	return Experiment{
		Name: "8", Title: "quorum lost and regained", Seed: 8,
		Question:    "What happens when the engine loses its quorum, and when five Raft nodes are split two to three with the leader among the two?",
		Expectation: "Without a quorum nothing is granted, and the leader stops believing within the TTL, counted from the loss. When the quorum is back somebody leads by itself, within G7's bound. In the split the three elect one, after the two have stopped believing, and all five are one fleet again when it heals.",
		Trials: func(size Size) []Trial {
			trial := func(kind, engine string, ttl time.Duration, do func(context.Context, *trialRun, int, *Round) error) Trial {
				t := newTrial(engine, ttl, pick(size, 300.0, 2000), pick(size, 1, 5), loop{what: "the quorum is lost: " + kind, do: do})
				t.Name, t.Pass = engine+"-"+kind, safe("evidence", "refusal")
				if engine == etcdEngine {
					t.Engines = 3
				}
				return t
			}
			ttl := pick(size, 2*time.Second, 3*time.Second)
			killed := trial(quorumKilled, etcdEngine, ttl, killQuorum)
			killed.fleet = func(c *lab.Config) { c.RestartWait = killed.outage() }
			split := trial(splitNodes, raftEngine, time.Second, splitFleet)
			split.Nodes, split.Pass = 5, safe("evidence")
			all := []Trial{trial(quorumPaused, etcdEngine, ttl, pauseQuorum), split}
			if size == Full {
				all = append(all, killed, trial(quorumPaused, raftEngine, time.Second, pauseQuorum))
			}
			return all
		},
		Takes: func(size Size) time.Duration { return pick(size, 20*time.Second, 3*time.Minute) },
		Judge: judgeQuorum,
	}
}

// outage is how long a quorum is lost: longer than anybody may believe without it.
func (t Trial) outage() time.Duration {
	return t.describe(Experiment{}, Full).SilentAfter() + time.Second
}

// others are the nodes but one.
func (s *trialRun) others(but string) (ids []string) {
	for _, n := range s.file.Nodes {
		if n.ID != but {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// pauseQuorum stops a majority for as long as an outage is, another pair of members each
// time, and notes the time in which there was surely no quorum.
func pauseQuorum(ctx context.Context, s *trialRun, i int, r *Round) error {
	r.Kind = quorumPaused
	f, err := s.inject(ctx, r, chaos.Spec{Kind: chaos.Pause, Targets: []string{chaos.Quorum}, Nth: i, For: time.Millisecond, Until: func(ctx context.Context, _ chaos.Target) error {
		r.Begun = now()
		if err := s.hold(ctx, s.trial.outage()); err != nil {
			return err
		}
		err := s.down(ctx, r.Node, r.old())
		r.Healed = now()
		return err
	}})
	if err != nil {
		return err
	}
	return s.without(f, r)
}

// killQuorum kills a majority. They are started again an outage later, not earlier.
func killQuorum(ctx context.Context, s *trialRun, i int, r *Round) error {
	r.Kind = quorumKilled
	f, err := s.inject(ctx, r, chaos.Spec{Kind: chaos.Kill, Targets: []string{chaos.Quorum}, Nth: i})
	if err != nil {
		return err
	}
	r.Begun, r.Healed = f.Begun, f.Begun.Add(s.trial.outage())
	return s.without(f, r)
}

// without writes down that there was no quorum.
func (s *trialRun) without(f chaos.Fault, r *Round) error {
	x := inHistory(f, history.ClassQuorum)
	x.Name, x.PartOf, x.Begun, x.Healed, x.Set, x.Held = "no-quorum", f.Name, r.Begun, r.Healed, 0, 0
	return s.faults.Write(x)
}

// splitFleet cuts the leader and one more off the other nodes.
func splitFleet(ctx context.Context, s *trialRun, i int, r *Round) error {
	beside := s.others(r.Node)
	r.Kind, r.Other = splitNodes, beside[i%len(beside)]
	_, err := s.inject(ctx, r, chaos.Spec{Kind: chaos.Partition, From: chaos.Peers, Targets: []string{r.Node, r.Other}, For: 2 * s.trial.TTL, Until: func(ctx context.Context, _ chaos.Target) error {
		r.Begun = now()
		next, err := s.sealed(ctx, r.old())
		if err != nil {
			return err
		}
		r.followed(next)
		err = s.down(ctx, r.Node, r.old())
		r.Healed = now()
		return err
	}})
	return err
}

func judgeQuorum(all []Outcome) (bars []Threshold, _ []Table) {
	belief := Table{Title: "from the loss to the end of the leader's belief", Head: seriesHead("trial")}
	back := Table{Title: "from the end of the fault to the next attempt to write", Head: seriesHead("trial")}
	for _, o := range all {
		var ends, returns series
		wrong := int64(0)
		for _, r := range o.Rounds {
			if old := o.term(r.Token); old.Ended >= r.Begun { // who was none by then has stopped nothing
				ends = append(ends, old.Ended.Sub(r.Begun))
			}
			for _, t := range o.Report.Terms {
				if uint64(t.Token) > r.Token && (t.Node == r.Node || t.Node == r.Other) && r.Begun <= t.Began && t.Began <= r.Healed {
					wrong++
				}
			}
			if next := o.term(r.Next); r.Kind != splitNodes && next.FirstAttempt > 0 {
				returns = append(returns, max(0, next.FirstAttempt.Sub(r.Healed)))
			}
		}
		bars = append(bars, below(o.Name+": the leader stops believing within the TTL", ends, o.TTL, o.Trial.Rounds))
		if o.Name == "raft-"+splitNodes {
			bars = append(bars, none(o.Name+": leaders elected by the two", wrong))
		} else {
			bars = append(bars, below(o.Name+": somebody writes again", returns, o.Report.Run.RecoveryBound(), o.Trial.Rounds))
			back.Rows = append(back.Rows, returns.row(o.Name))
		}
		belief.Rows = append(belief.Rows, ends.row(o.Name))
	}
	return bars, []Table{belief, back}
}

// memberFates are what becomes of a member of the engine, in the order in which they come
// round.
func memberFates() []string { return []string{"stopped", "killed", "black-holed"} }

// member is experiment 9.
func member() Experiment {
	return Experiment{
		Name: "9", Title: "one member of the engine stopped, killed, black-holed", Seed: 9,
		Question:    "Does the leader keep its term while one of three members of the engine is away for longer than the TTL, whichever it is?",
		Expectation: "Yes, every time: keep-alives go to another member, and an election inside the engine is over before trust is. With Raft the members are the nodes, and the one that is away is a follower. Black-holed means that the nodes do not reach it: they do not with Raft, and its own peers do with etcd.",
		Trials: func(size Size) (all []Trial) {
			for _, t := range []Trial{
				newTrial(etcdEngine, pick(size, 4*time.Second, 8*time.Second), pick(size, 300.0, 2000), pick(size, 1, 5)*len(memberFates()), loop{what: "a member is to be away", do: memberAway}),
				newTrial(raftEngine, time.Second, pick(size, 300.0, 2000), pick(size, 1, 5)*len(memberFates()), loop{what: "a member is to be away", do: memberAway}),
			} {
				if t.Engine == etcdEngine {
					t.Engines = 3
				}
				t.fleet = func(c *lab.Config) { c.RestartWait = away(t.TTL) }
				all = append(all, t)
			}
			return all
		},
		Judge: func(all []Outcome) (bars []Threshold, _ []Table) {
			t := Table{Title: "who was away", Head: []string{"trial", "round", "what", "whom, and what shows it", "leader, token", "after"}}
			for _, o := range all {
				for _, fate := range memberFates() {
					kept, n := 0, 0
					for _, r := range o.Rounds {
						if r.Kind != fate {
							continue
						}
						if n++; r.Next == r.Token && r.Successor == r.Node {
							kept++
						}
					}
					bars = append(bars, count(fmt.Sprintf("%s: the leader keeps its term, a member being %s", o.Name, fate), kept, n))
				}
				for i, r := range o.Rounds {
					t.add(o.Name, i+1, r.Kind, r.Seen, fmt.Sprintf("%s, %d", r.Node, r.Token), fmt.Sprintf("%s, %d", r.Successor, r.Next))
				}
			}
			return bars, []Table{t}
		},
	}
}

// away is how long a member is: longer than a term lasts without a keep-alive.
func away(ttl time.Duration) time.Duration { return ttl + 500*time.Millisecond }

func memberAway(ctx context.Context, s *trialRun, i int, r *Round) error {
	fates := memberFates()
	r.Kind = fates[i%len(fates)]
	spec := chaos.Spec{Kind: []string{chaos.Pause, chaos.Kill, chaos.Partition}[i%len(fates)], For: away(s.trial.TTL)}
	// All members in turn, by each fate: one of them leads the engine.
	spec.Nth, spec.Targets = i/len(fates)+i%len(fates), []string{chaos.Member}
	if s.trial.Engine == raftEngine {
		spec.Targets = []string{chaos.Follower}
	}
	f, err := s.inject(ctx, r, spec)
	r.Seen = f.Target + ": " + f.Evidence
	return err
}
