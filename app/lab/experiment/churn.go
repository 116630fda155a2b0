package experiment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
	"github.com/tenurehq/tenure/app/lab/check"
	"github.com/tenurehq/tenure/internal/child"
)

// herd is the bug of candidates that all try at once.
const herd = "herd"

// churn is experiment 6.
func churn() Experiment {
	return Experiment{
		Name: "6", Title: "churn: leaders killed one after the other while nodes join and leave", Seed: 6,
		Question: "How long does an election take while the leader is killed every 5 s and others come and go, what does it cost the engine, and does everybody get a turn?",
		Expectation: "From the vacancy at the engine to the next term: 95 % below 500 ms, none as long as 2 s, 99 % within 50 ms as an aim. " +
			"One winner for each vacancy; every node wins, and stands in line for at most 18 rounds. With nine nodes a vacancy costs the engine at most 1.2 times the calls that it costs with three, because only the first in line tries. " +
			"Where everybody tries at once (a planted bug) it costs several times as much. Raft has no line, and nobody tells of a vacancy before a vote has ended it: what is told there is from the kill to the next term, and who wins is left to chance.",
		Trials: func(size Size) []Trial {
			trial := func(name, engine string, nodes, rounds int) Trial {
				return Trial{
					Name: name, Engine: engine, TTL: 2 * time.Second, Nodes: nodes, Rate: pick(size, 100.0, 500), Rounds: rounds,
					Every: pick(size, 3*time.Second, 5*time.Second), Patience: time.Second, Pass: safe("evidence"), play: churnRounds, after: countCalls,
				}
			}
			// Ten minutes of that which is judged, five of what it is compared with.
			all := []Trial{
				trial("etcd-9/"+inLine, etcdEngine, 9, pick(size, 2, 120)),
				trial("etcd-3/"+inLine, etcdEngine, 3, pick(size, 1, 60)),
				trial("etcd-9/"+atOnceName, etcdEngine, 9, pick(size, 1, 60)),
			}
			all[2].Plant = []string{herd}
			if size == Full {
				raft := trial("raft-9", raftEngine, 9, 60)
				raft.TTL, raft.after = time.Second, nil
				all = append(all, raft)
			}
			return all
		},
		Takes:  func(size Size) time.Duration { return pick(size, 30*time.Second, 27*time.Minute) },
		Judge:  judgeChurn,
		figure: drawElections,
	}
}

// How the candidates of a trial come to try.
const (
	inLine     = "in-line"
	atOnceName = "all-at-once"
)

// churned is what a trial of churn has besides rounds.
type churned struct {
	// Seconds that the storm took, and what the engine was asked in each second of it and
	// of the calm before, by its own count.
	Seconds float64 `json:"seconds"`
	Calm    counted `json:"calm"`
	Storm   counted `json:"storm"`
	// Tries and Calls are what each vacancy led to, by the nodes' count.
	Tries []int `json:"tries"`
	Calls []int `json:"calls"`
}

func churnRounds(ctx context.Context, s *stage) error {
	if err := s.all(ctx); err != nil {
		return err
	}
	c := &churned{}
	s.churned = c
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
		calm = 10 * s.trial.TTL
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
	for i := range s.trial.Rounds {
		if err := s.hold(ctx, max(0, began.Add(time.Duration(i)*s.trial.Every).Sub(now()))); err != nil {
			return err
		}
		if err := s.churnRound(ctx, i); err != nil {
			return err
		}
		s.round()
	}
	over := now().Sub(began)
	after, err := ask()
	c.Seconds, c.Storm = over.Seconds(), after.rate(before, over)
	return err
}

// few rounds are enough to see that it runs, and not to judge who gets a turn.
const few = 10

func (s *stage) churnRound(ctx context.Context, i int) error {
	f, err := s.broken(check.ClassKill, func() (chaos.Fault, error) { return s.chaos.KillLeader(ctx) })
	if err != nil {
		return err
	}
	r := Round{Kind: "kill", Node: f.Target, Token: uint64(f.Token)}
	if i%2 == 1 {
		if r.Left, err = s.leave(ctx, f.Target); err != nil {
			return err
		}
	}
	next, err := s.leader(ctx, f.Token)
	if err != nil {
		return err
	}
	r.Successor, r.Next = next.ID, uint64(next.Token)
	s.say("round %d of %d: %s killed, %s left, %s leads with token %d", i+1, s.trial.Rounds, r.Node, orNobody(r.Left), r.Successor, r.Next)
	s.rounds = append(s.rounds, r)
	return nil
}

func orNobody(id string) string {
	if id == "" {
		return "nobody"
	}
	return id
}

// leave lets one of the others end in order, at random; it is started again as those are
// that were killed. Empty: nobody else is there.
func (s *stage) leave(ctx context.Context, but string) (string, error) {
	nodes := s.fleet.File().Nodes
	for _, i := range s.rng.Perm(len(nodes)) {
		n := nodes[i]
		st, ok := s.status(ctx, n.URL)
		if !ok || n.ID == but || st.PID != n.PID {
			continue
		}
		p, err := os.FindProcess(n.PID)
		if err != nil {
			return "", err
		}
		begun := now()
		err = child.Interrupt(p)
		_ = p.Release()
		if errors.Is(err, os.ErrProcessDone) {
			continue
		}
		if err != nil {
			return "", err
		}
		if err := await(ctx, n.ID+" leaving", func(ctx context.Context) bool {
			st, ok := s.status(ctx, n.URL)
			return !ok || st.PID != n.PID
		}); err != nil {
			return "", err
		}
		return n.ID, s.faults.Write(check.Fault{Name: "leave", Target: n.ID, Begun: begun, Healed: now(), Evidence: fmt.Sprintf("pid %d has ended in order", n.PID)})
	}
	return "", nil
}

// countCalls attributes the nodes' calls to the vacancies, before the traces are gone.
func countCalls(traces string, o *Outcome) error {
	calls, err := nodeCalls(traces)
	if err != nil {
		return err
	}
	o.Churn.Tries, o.Churn.Calls = electing(calls, o.Report.Terms, o.Rounds)
	return nil
}
