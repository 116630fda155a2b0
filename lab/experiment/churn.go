package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/labapi"
)

// herd is the bug of candidates that all try at once.
const herd = "herd"

// churn is experiment 6.
func churn() Experiment {
	return Experiment{
		Name: "6", Title: "churn: leaders killed one after the other while nodes join and leave", Seed: 6,
		Question: "How long does an election take while the leader is killed every 5 s and others come and go, what does it cost the engine, and does everybody get a turn?",
		Expectation: "From the vacancy at the engine to the next term: 95 % below 500 ms, none as long as 2 s, 99 % within 50 ms as an aim. " +
			"One winner for each vacancy; at most one term in twenty is lost to load alone, and none for another reason than a kill, a leave or load. Every node wins, and stands in line for at most 18 rounds: from one win to the next it may take longer, because whoever leaves and joins again stands at the end of the line, as with any queue; both are told. " +
			"With nine nodes a vacancy costs the engine at most 1.2 times the calls that it costs with three, because only the first in line tries: by the nodes' count of the calls that a vacancy leads to, and by etcd's own of all calls but beats beyond those of a calm, joining included. " +
			"Where everybody tries at once (a planted bug) it costs several times as much. A leader that leaves, in every tenth round, hands over in order. " +
			"Raft has no line, and nobody tells of a vacancy before a vote has ended it: what is told there is from the kill to the next term, up to twice the patience of a follower longer, and who wins is left to chance; in ten minutes everybody does.",
		Trials: func(size Size) []Trial {
			trial := func(name, engine string, nodes, rounds int) Trial {
				return Trial{
					Name: name, Engine: engine, TTL: 2 * time.Second, Nodes: nodes, Rate: pick(size, 100.0, 500), Rounds: rounds,
					Every: pick(size, 3*time.Second, 5*time.Second), Patience: time.Second, Pass: safe("evidence", "baton"), play: churnRounds, after: countCalls,
				}
			}
			// Ten minutes of that which is judged, four of what it is compared with.
			all := []Trial{
				trial("etcd-9/"+inLine, etcdEngine, 9, pick(size, 2, 120)),
				trial("etcd-3/"+inLine, etcdEngine, 3, pick(size, 1, 48)),
				trial("etcd-9/"+atOnceName, etcdEngine, 9, pick(size, 1, 48)),
			}
			all[2].Plant = []string{herd}
			if size == Full {
				raft := trial("raft-9", raftEngine, 9, 120)
				raft.after = nil
				all = append(all, raft)
			}
			return all
		},
		Takes:  func(size Size) time.Duration { return pick(size, 30*time.Second, 30*time.Minute) },
		Judge:  judgeChurn,
		figure: drawElections,
	}
}

// How the candidates of a trial come to try.
const (
	inLine     = "in-line"
	atOnceName = "all-at-once"
)

// churnCost is what a trial of churn has besides rounds.
type churnCost struct {
	// Seconds that the storm took, and what the engine was asked in each second of it and
	// of the calm before, by its own count.
	Seconds float64 `json:"seconds"`
	Calm    counted `json:"calm"`
	Storm   counted `json:"storm"`
	// Tries and Calls are what each vacancy led to, by the nodes' count.
	Tries []int `json:"tries"`
	Calls []int `json:"calls"`
}

func churnRounds(ctx context.Context, s *trialRun) error {
	if err := s.all(ctx); err != nil {
		return err
	}
	c := &churnCost{}
	s.churnCost = c
	ask := func() (counted, error) {
		if s.trial.Engine == raftEngine {
			return nil, nil // it has no engine that could be asked
		}
		return s.engineCalls(ctx)
	}
	first, err := ask()
	if err != nil {
		return err
	}
	calm := s.trial.TTL / 2
	if s.trial.Rounds > few {
		calm = 15 * s.trial.TTL
	}
	s.say("calm for %v", calm)
	if err := s.hold(ctx, calm); err != nil {
		return err
	}
	before, err := ask()
	if err != nil {
		return err
	}
	c.Calm = before.rate(first, calm)
	began := now()
	if err := (loop{
		what: "killing the leader", busy: true, do: churnRound,
		wait: func(s *trialRun, i int) time.Duration {
			return max(0, began.Add(time.Duration(i)*s.trial.Every).Sub(now()))
		},
	}).play(ctx, s); err != nil {
		return err
	}
	over := now().Sub(began)
	after, err := ask()
	c.Seconds, c.Storm = over.Seconds(), after.rate(before, over)
	return err
}

// few rounds are enough to see that it runs, and not to judge who gets a turn.
const few = 10

func churnRound(ctx context.Context, s *trialRun, i int, r *Round) error {
	r.Kind = "kill"
	f, err := s.inject(ctx, r, chaos.Spec{Kind: chaos.KillLeader})
	if err != nil {
		return err
	}
	// The last round has a handover in order too, however few there are.
	hands := i%10 == 9 || i == s.trial.Rounds-1
	if i%2 == 1 && !hands {
		if r.Left, err = s.another(ctx, f.Target); err != nil {
			return err
		}
	}
	next, err := s.leader(ctx, f.Token)
	if err != nil {
		return err
	}
	r.followed(next)
	if hands {
		if err := s.hold(ctx, aftermath); err != nil {
			return err
		}
		for _, n := range s.fleet.File().Nodes {
			if n.ID != next.ID {
				continue
			}
			left, err := s.leave(ctx, n)
			if err != nil {
				return err
			}
			if !left {
				break // it has gone by itself
			}
			r.Left = n.ID
			if _, err := s.leader(ctx, next.Token); err != nil {
				return err
			}
		}
	}
	s.say("%s killed, %s left", r.Node, cmp.Or(r.Left, "nobody"))
	return nil
}

// another lets one of the others leave, at random. Empty: nobody else is there.
func (s *trialRun) another(ctx context.Context, but string) (string, error) {
	nodes := s.fleet.File().Nodes
	for _, i := range s.rng.Perm(len(nodes)) {
		if nodes[i].ID == but {
			continue
		}
		if left, err := s.leave(ctx, nodes[i]); left || err != nil {
			return nodes[i].ID, err
		}
	}
	return "", nil
}

// leave lets a node end in order; it is started again as those are that were killed.
// False: it does not run now.
func (s *trialRun) leave(ctx context.Context, n labapi.NodeFile) (bool, error) {
	if st, ok := s.status(ctx, n.URL); !ok || st.PID != n.PID {
		return false, nil
	}
	p, err := os.FindProcess(n.PID)
	if err != nil {
		return false, err
	}
	begun := now()
	err = child.Interrupt(p)
	_ = p.Release()
	if errors.Is(err, os.ErrProcessDone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := await(ctx, n.ID+" leaving", func(ctx context.Context) bool {
		st, ok := s.status(ctx, n.URL)
		return !ok || st.PID != n.PID
	}); err != nil {
		return false, err
	}
	return true, s.faults.Write(check.Fault{
		Name: "leave", Target: n.ID, Begun: begun, Healed: now(), Evidence: fmt.Sprintf("pid %d has ended in order", n.PID),
		Proof: check.Proof{Kind: check.ProofExited, PIDs: []int{n.PID}},
	})
}

// countCalls attributes the nodes' calls to the vacancies, before the traces are gone.
func countCalls(traces string, o *Outcome) error {
	calls, err := nodeCalls(traces)
	if err != nil {
		return err
	}
	o.Churn.Tries, o.Churn.Calls = electing(calls, *o)
	return nil
}
