package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
	fleetclient "github.com/tenurehq/tenure/app/fleet/client"
	"github.com/tenurehq/tenure/app/lab"
	"github.com/tenurehq/tenure/fence"
)

// cut is experiment 3.
func cut() Experiment {
	return Experiment{
		Name: "3", Title: "leader cut off from the engine, not from the ledger", Seed: 3,
		Question:    "Does a leader that the engine no longer hears stop before the next one is granted?",
		Expectation: "Its own trust ends before its lease, or its followers' patience, can: no two believe at once, it makes no attempt to write after the successor's term began, so the ledger has nothing to refuse. Raft's own lease, which would unseat the leader even earlier, is set to the followers' patience, so that it does not hide that.",
		Trials: func(size Size) []Trial {
			rounds := pick(size, 1, 20)
			trial := func(engine string, ttl time.Duration) Trial {
				return Trial{
					Name: fmt.Sprintf("%s-%v", engine, ttl), Engine: engine, TTL: ttl, Nodes: 3, Rate: pick(size, 500.0, 5000), Rounds: rounds,
					Patience: time.Second, Pass: safe("evidence"), fleet: trustFirst(engine, ttl), play: cutRounds,
				}
			}
			return []Trial{trial(etcdEngine, pick(size, 2*time.Second, 3*time.Second)), trial(raftEngine, time.Second)}
		},
		Judge: func(all []Outcome) ([]Threshold, []Table) {
			var bars []Threshold
			early := Table{Title: "how long before the successor's term the old one ended", Head: seriesHead("trial")}
			for _, o := range all {
				var s series
				for _, r := range o.Rounds {
					if c, ok := changeOf(o.Report, r); ok {
						s = append(s, c.next.Began.Sub(c.old.Ended))
					}
				}
				least := s.at(0)
				bars = append(bars,
					Threshold{Name: o.Name + ": stopped believing before the next term", Value: fmt.Sprintf("least %s of %d", ms(least), len(s)), Bar: fmt.Sprintf("> 0, %d rounds", o.Trial.Rounds), OK: least > 0 && len(s) == o.Trial.Rounds},
					none(o.Name+": stale attempts", o.Damage.Refused+o.Damage.Applied),
					o.ownTrust(o.Trial.Rounds))
				early.Rows = append(early.Rows, s.row(o.Name))
			}
			return bars, []Table{early}
		},
	}
}

// The causes of an end by the leader's own clock, and by what Raft told it.
const (
	causeExpired = "expired"
	causeLost    = "lost"
)

// endedBy counts the rounds whose old term ended for a cause.
func (o Outcome) endedBy(cause string) (n int) {
	for _, r := range o.Rounds {
		if o.term(r.Token).Cause == cause {
			n++
		}
	}
	return n
}

// ownTrust is the threshold that a term's end was the leader's own doing. On Raft the
// library's lease follows by a fourteenth of the TTL: a stall of that length may let it
// be first, so nine of ten are asked for.
func (o Outcome) ownTrust(rounds int) Threshold {
	t := count(o.Name+": ended by the leader's own trust", o.endedBy(causeExpired), rounds)
	if least := (9*rounds + 9) / 10; o.Engine == raftEngine {
		t.Bar, t.OK = fmt.Sprintf(">= %d of %d", least, rounds), rounds > 0 && o.endedBy(causeExpired) >= least
	}
	return t
}

// trustFirst keeps Raft from unseating a leader before its trust ends, as it otherwise
// does: a round would measure Raft's lease, which no clock of ours reaches.
func trustFirst(engine string, ttl time.Duration) func(*lab.Config) {
	return func(c *lab.Config) {
		if engine == raftEngine {
			c.NodeArgs = append(c.NodeArgs, "-raft-lease", ttl.String())
		}
	}
}

func cutRounds(ctx context.Context, s *stage) error {
	return s.cutOff(ctx, func(ctx context.Context, old, _ fleetclient.Leader, _ *Round) error {
		return s.down(ctx, old.ID, old.Token)
	})
}

// cutOff cuts the leader off what elects it, round by round, until another leads and
// meanwhile has returned.
func (s *stage) cutOff(ctx context.Context, meanwhile func(ctx context.Context, old, next fleetclient.Leader, r *Round) error) error {
	from := chaos.Engine
	if s.trial.Engine == raftEngine {
		from = chaos.Peers
	}
	for i := range s.trial.Rounds {
		if err := s.all(ctx); err != nil {
			return err
		}
		if err := s.somewhere(ctx); err != nil {
			return err
		}
		s.say("round %d of %d: cutting the leader off", i+1, s.trial.Rounds)
		r := Round{Kind: "cut"}
		p := chaos.Partition{From: from, For: s.trial.TTL, Until: func(ctx context.Context, at chaos.Leader) error {
			r.Node, r.Token = at.ID, uint64(at.Token)
			next, err := s.sealed(ctx, at.Token)
			if err != nil {
				return err
			}
			r.Successor, r.Next = next.ID, uint64(next.Token)
			s.say("%s leads with token %d, %s is still cut off", next.ID, next.Token, at.ID)
			return meanwhile(ctx, fleetclient.Leader{ID: at.ID, URL: at.URL, Token: at.Token}, next, &r)
		}}
		if _, err := s.broken("", func() (chaos.Fault, error) { return s.chaos.PartitionLeader(ctx, p) }); err != nil {
			return err
		}
		if err := s.down(ctx, r.Node, fence.Token(r.Token)); err != nil {
			return err
		}
		s.rounds = append(s.rounds, r)
		s.round()
	}
	return nil
}
