package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
	fleetclient "github.com/tenurehq/tenure/app/fleet/client"
	"github.com/tenurehq/tenure/app/lab"
	"github.com/tenurehq/tenure/app/lab/check"
	"github.com/tenurehq/tenure/fence"
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
			trial := func(name, engine string, ttl time.Duration, play func(context.Context, *stage) error) Trial {
				return Trial{
					Name: name, Engine: engine, TTL: ttl, Nodes: 3, Rate: pick(size, 300.0, 2000), Rounds: pick(size, 1, 5),
					Patience: time.Second, Pass: safe("evidence", "refusal"), play: play,
				}
			}
			ttl := pick(size, 2*time.Second, 3*time.Second)
			paused := trial("etcd-"+quorumPaused, etcdEngine, ttl, pauseMembers)
			killed := trial("etcd-"+quorumKilled, etcdEngine, ttl, killMembers)
			paused.Engines, killed.Engines = 3, 3
			killed.fleet = func(c *lab.Config) { c.RestartWait = killed.outage() }
			split := trial("raft-"+splitNodes, raftEngine, time.Second, splitRounds)
			split.Nodes, split.Pass = 5, safe("evidence")
			all := []Trial{paused, split}
			if size == Full {
				all = append(all, killed, trial("raft-"+quorumPaused, raftEngine, time.Second, pauseFollowers))
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

// again plays a script again and again, each time with the fleet whole and somebody
// leading, at another moment of the beat.
func (s *stage) again(ctx context.Context, what string, play func(ctx context.Context, i int, l fleetclient.Leader) (Round, error)) error {
	for i := range s.trial.Rounds {
		if err := s.all(ctx); err != nil {
			return err
		}
		if err := s.somewhere(ctx); err != nil {
			return err
		}
		l, err := s.leader(ctx, 0)
		if err != nil {
			return err
		}
		s.say("round %d of %d: %s; %s leads with token %d", i+1, s.trial.Rounds, what, l.ID, l.Token)
		r, err := play(ctx, i, l)
		if err != nil {
			return err
		}
		r.Node, r.Token = l.ID, uint64(l.Token)
		if r.Next == 0 {
			next, err := s.leader(ctx, 0)
			if err != nil {
				return err
			}
			r.Successor, r.Next = next.ID, uint64(next.Token)
		}
		s.say("%s leads with token %d", r.Successor, r.Next)
		s.rounds = append(s.rounds, r)
		s.round()
	}
	return nil
}

// members are two of the engine's three, another pair each time.
func (s *stage) members(i int) []string {
	var all []string
	for j, e := range s.file.Engines {
		if j != i%len(s.file.Engines) {
			all = append(all, e.ID)
		}
	}
	return all
}

func pauseMembers(ctx context.Context, s *stage) error {
	return s.again(ctx, "two of three members stop", func(ctx context.Context, i int, l fleetclient.Leader) (Round, error) {
		return s.pauseQuorum(ctx, l, s.members(i)...)
	})
}

func pauseFollowers(ctx context.Context, s *stage) error {
	return s.again(ctx, "both followers stop", func(ctx context.Context, _ int, l fleetclient.Leader) (Round, error) {
		return s.pauseQuorum(ctx, l, s.others(l.ID)...)
	})
}

// others are the nodes but one.
func (s *stage) others(but string) (ids []string) {
	for _, n := range s.file.Nodes {
		if n.ID != but {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// pauseQuorum stops a majority for as long as an outage is, and notes the time in which
// there was surely no quorum.
func (s *stage) pauseQuorum(ctx context.Context, l fleetclient.Leader, what ...string) (Round, error) {
	r := Round{Kind: quorumPaused}
	f, err := s.broken("", func() (chaos.Fault, error) {
		return s.chaos.Pause(ctx, chaos.Pause{For: time.Millisecond, Until: func(ctx context.Context, _ chaos.Leader) error {
			r.Begun = now()
			if err := s.hold(ctx, s.trial.outage()); err != nil {
				return err
			}
			err := s.down(ctx, l.ID, l.Token)
			r.Healed = now()
			return err
		}}, what...)
	})
	if err != nil {
		return r, err
	}
	return r, s.without(f, r)
}

// without writes down that there was no quorum.
func (s *stage) without(f chaos.Fault, r Round) error {
	x := inHistory(f, check.ClassQuorum)
	x.Name, x.PartOf, x.Begun, x.Healed, x.Set, x.Held = "no-quorum", f.Name, r.Begun, r.Healed, 0, 0
	return s.faults.Write(x)
}

func killMembers(ctx context.Context, s *stage) error {
	return s.again(ctx, "two of three members are killed", func(ctx context.Context, i int, _ fleetclient.Leader) (Round, error) {
		r := Round{Kind: quorumKilled}
		f, err := s.broken("", func() (chaos.Fault, error) { return s.chaos.Kill(ctx, s.members(i)...) })
		if err != nil {
			return r, err
		}
		// They are started again this much later, not earlier.
		r.Begun, r.Healed = f.Begun, f.Begun.Add(s.trial.outage())
		return r, s.without(f, r)
	})
}

func splitRounds(ctx context.Context, s *stage) error {
	return s.again(ctx, "the leader and one more are cut off the other three", func(ctx context.Context, i int, l fleetclient.Leader) (Round, error) {
		beside := s.others(l.ID)
		r := Round{Kind: splitNodes, Other: beside[i%len(beside)]}
		_, err := s.broken("", func() (chaos.Fault, error) {
			return s.chaos.Partition(ctx, chaos.Partition{From: chaos.Peers, For: 2 * s.trial.TTL, Until: func(ctx context.Context, _ chaos.Leader) error {
				r.Begun = now()
				next, err := s.sealed(ctx, l.Token)
				if err != nil {
					return err
				}
				r.Successor, r.Next = next.ID, uint64(next.Token)
				err = s.down(ctx, l.ID, l.Token)
				r.Healed = now()
				return err
			}}, l.ID, r.Other)
		})
		return r, err
	})
}

func judgeQuorum(all []Outcome) ([]Threshold, []Table) {
	var bars []Threshold
	belief := Table{Title: "from the loss to the end of the leader's belief", Head: seriesHead("trial")}
	back := Table{Title: "from the end of the fault to the next attempt to write", Head: seriesHead("trial")}
	for _, o := range all {
		var ends, returns series
		wrong := int64(0)
		for _, r := range o.Rounds {
			old, next := o.term(r.Token), o.term(r.Next)
			if old.Ended >= r.Begun { // who was none by then has stopped nothing
				ends = append(ends, old.Ended.Sub(r.Begun))
			}
			for _, t := range o.Report.Terms {
				if uint64(t.Token) > r.Token && (t.Node == r.Node || t.Node == r.Other) && r.Begun <= t.Began && t.Began <= r.Healed {
					wrong++
				}
			}
			if r.Kind != splitNodes && next.FirstAttempt > 0 {
				returns = append(returns, max(0, next.FirstAttempt.Sub(r.Healed)))
			}
		}
		bars = append(bars, below(o.Name+": the leader stops believing within the TTL", ends, o.TTL, o.Trial.Rounds))
		if o.Name == "raft-"+splitNodes {
			bars = append(bars, none(o.Name+": leaders elected by the two", wrong))
		} else {
			bound := o.Report.Run.RecoveryBound()
			bars = append(bars, below(fmt.Sprintf("%s: somebody writes again", o.Name), returns, bound, o.Trial.Rounds))
			back.Rows = append(back.Rows, returns.row(o.Name))
		}
		belief.Rows = append(belief.Rows, ends.row(o.Name))
	}
	return bars, []Table{belief, back}
}

// term is the one with a token; zero: there is none.
func (o Outcome) term(token uint64) (t check.Term) {
	for _, x := range o.Report.Terms {
		if x.Token == fence.Token(token) {
			return x
		}
	}
	return t
}
