package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
	fleetclient "github.com/tenurehq/tenure/app/fleet/client"
	"github.com/tenurehq/tenure/app/lab"
)

// What becomes of a member of the engine.
const (
	memberStopped    = "stopped"
	memberKilled     = "killed"
	memberBlackHoled = "black-holed"
)

// memberFates are all of them, in the order in which they come round.
func memberFates() []string { return []string{memberStopped, memberKilled, memberBlackHoled} }

// member is experiment 9.
func member() Experiment {
	return Experiment{
		Name: "9", Title: "one member of the engine stopped, killed, black-holed", Seed: 9,
		Question:    "Does the leader keep its term while one of three members of the engine is away for longer than the TTL, whichever it is?",
		Expectation: "Yes, every time: keep-alives go to another member, and an election inside the engine is over before trust is. With Raft the members are the nodes, and the one that is away is a follower. Black-holed means that the nodes do not reach it: they do not with Raft, and its own peers do with etcd.",
		Trials: func(size Size) []Trial {
			trial := func(engine string, ttl time.Duration) Trial {
				return Trial{
					Name: fmt.Sprintf("%s-%v", engine, ttl), Engine: engine, TTL: ttl, Nodes: 3, Rate: pick(size, 300.0, 2000),
					Rounds: pick(size, 1, 5) * len(memberFates()), Patience: time.Second, Pass: safe("evidence"), play: memberRounds,
					fleet: func(c *lab.Config) { c.RestartWait = away(ttl) },
				}
			}
			onEtcd := trial(etcdEngine, pick(size, 4*time.Second, 8*time.Second))
			onEtcd.Engines = 3
			return []Trial{onEtcd, trial(raftEngine, time.Second)}
		},
		Judge: func(all []Outcome) ([]Threshold, []Table) {
			var bars []Threshold
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
					t.Rows = append(t.Rows, []string{o.Name, fmt.Sprint(i + 1), r.Kind, r.Seen, fmt.Sprintf("%s, %d", r.Node, r.Token), fmt.Sprintf("%s, %d", r.Successor, r.Next)})
				}
			}
			return bars, []Table{t}
		},
	}
}

// away is how long a member is: longer than a term lasts without a keep-alive.
func away(ttl time.Duration) time.Duration { return ttl + 500*time.Millisecond }

func memberRounds(ctx context.Context, s *stage) error {
	fates := memberFates()
	return s.again(ctx, "a member is to be away", func(ctx context.Context, i int, l fleetclient.Leader) (Round, error) {
		r := Round{Kind: fates[i%len(fates)]}
		// All members in turn, by each fate: one of them leads the engine.
		nth := i/len(fates) + i%len(fates)
		var whom string
		if s.trial.Engine == raftEngine {
			whom = s.others(l.ID)[nth%2]
		} else {
			whom = s.file.Engines[nth%len(s.file.Engines)].ID
		}
		d := away(s.trial.TTL)
		f, err := s.broken("", func() (chaos.Fault, error) {
			switch r.Kind {
			case memberStopped:
				return s.chaos.Pause(ctx, chaos.Pause{For: d}, whom)
			case memberKilled:
				return s.chaos.Kill(ctx, whom)
			default:
				return s.chaos.Partition(ctx, chaos.Partition{For: d}, whom)
			}
		})
		r.Seen = whom + ": " + f.Evidence
		return r, err
	})
}
