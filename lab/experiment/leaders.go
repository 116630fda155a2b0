package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/check"
	fleetclient "github.com/tenurehq/tenure/reference/client"
)

// newTrial is a trial of three nodes whose leader is hurt and that must keep every
// guarantee.
func newTrial(engine string, ttl time.Duration, rate float64, rounds int, script loop) Trial {
	return Trial{
		Name: fmt.Sprintf("%s-%v", engine, ttl), Engine: engine, TTL: ttl, Nodes: 3, Rate: rate, Rounds: rounds,
		Patience: time.Second, Pass: safe("evidence"), play: script.play,
	}
}

// kill is experiment 1.
func kill() Experiment {
	return Experiment{
		Name: "1", Title: "clean kill under load", Seed: 1,
		Question:    "How long does nobody write after the leader is killed with SIGKILL, by TTL and engine?",
		Expectation: "With etcd the TTL, counted from the last keep-alive, and up to half a second until etcd looks: at most TTL + 1 s. With Raft one to two election timeouts and a vote: below 1.5 s at 500 ms. No guarantee is broken.",
		Trials: func(size Size) []Trial {
			rate := pick(size, 500.0, 5000)
			if size == Quick {
				return []Trial{newTrial(etcdEngine, 2*time.Second, rate, 2, killScript()), newTrial(raftEngine, 500*time.Millisecond, rate, 3, killScript())}
			}
			return []Trial{
				newTrial(etcdEngine, 2*time.Second, rate, 20, killScript()), newTrial(etcdEngine, 3*time.Second, rate, 20, killScript()),
				newTrial(etcdEngine, 10*time.Second, rate, 5, killScript()), newTrial(raftEngine, 500*time.Millisecond, rate, 20, killScript()),
			}
		},
		Judge: func(all []Outcome) (bars []Threshold, _ []Table) {
			writes := Table{Title: "failover: last write of the old leader to the first of the new, of those that the ledger acknowledged", Head: seriesHead("trial")}
			answers := Table{Title: "as callers saw it: last answer to first answer", Head: seriesHead("trial")}
			for _, o := range all {
				w, a := killed(o)
				bar, row := 1500*time.Millisecond, w.row(o.Name)
				if o.Engine == etcdEngine {
					bar = o.TTL + 2*time.Second // 5 s at 3 s
					row = append(row, fmt.Sprintf("aim TTL + 1 s: %v", below("", w, o.TTL+time.Second, o.Trial.Rounds).OK))
				}
				bars = append(bars, below(o.Name+": failover, write to write", w, bar, o.Trial.Rounds))
				writes.Rows, answers.Rows = append(writes.Rows, row), append(answers.Rows, a.row(o.Name))
			}
			return bars, []Table{writes, answers}
		},
		figure: drawFailovers,
	}
}

func killScript() loop {
	return loop{what: "killing the leader", do: func(ctx context.Context, s *trialRun, _ int, r *Round) error {
		r.Kind = "kill"
		if _, err := s.inject(ctx, r, chaos.Spec{Kind: chaos.KillLeader}); err != nil {
			return err
		}
		next, err := s.leader(ctx, r.old())
		r.followed(next)
		return err
	}}
}

// killed are the failovers of a trial.
func killed(o Outcome) (writes, answers series) {
	for _, r := range o.Rounds {
		if d, ok := o.failover(r); ok {
			writes = append(writes, d)
		}
		if d, ok := o.silence(r); ok {
			answers = append(answers, d)
		}
	}
	return writes, answers
}

// cut is experiment 3.
func cut() Experiment {
	return Experiment{
		Name: "3", Title: "leader cut off from the engine, not from the ledger", Seed: 3,
		Question:    "Does a leader that the engine no longer hears stop before the next one is granted?",
		Expectation: "Its own trust ends before its lease, or its followers' patience, can: no two believe at once, it makes no attempt to write after the successor's term began, so the ledger has nothing to refuse. Raft's own lease, which would unseat the leader even earlier, is set to the followers' patience, so that it does not hide that.",
		Trials: func(size Size) (all []Trial) {
			script := cutScript(func(ctx context.Context, s *trialRun, r *Round, _ fleetclient.Leader) error {
				return s.down(ctx, r.Node, r.old())
			})
			for _, t := range []Trial{
				newTrial(etcdEngine, pick(size, 2*time.Second, 3*time.Second), pick(size, 500.0, 5000), pick(size, 1, 20), script),
				newTrial(raftEngine, time.Second, pick(size, 500.0, 5000), pick(size, 1, 20), script),
			} {
				t.fleet = trustFirst(t.Engine, t.TTL)
				all = append(all, t)
			}
			return all
		},
		Judge: func(all []Outcome) (bars []Threshold, _ []Table) {
			early := Table{Title: "how long before the successor's term the old one ended", Head: seriesHead("trial")}
			for _, o := range all {
				s := o.early()
				bars = append(bars,
					Threshold{Name: o.Name + ": stopped believing before the next term", Value: fmt.Sprintf("least %s of %d", ms(s.at(0)), len(s)), Bar: fmt.Sprintf("> 0, %d rounds", o.Trial.Rounds), OK: s.at(0) > 0 && len(s) == o.Trial.Rounds},
					none(o.Name+": stale attempts", o.Damage.Refused+o.Damage.Applied),
					o.ownTrust(o.Trial.Rounds))
				early.Rows = append(early.Rows, s.row(o.Name))
			}
			return bars, []Table{early}
		},
	}
}

// early is how long before the successor's term the old leader stopped believing.
func (o Outcome) early() (s series) {
	for _, r := range o.Rounds {
		if c, ok := changeOf(o.Report, r); ok {
			s = append(s, c.next.Began.Sub(c.old.Ended))
		}
	}
	return s
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
			c.NodeArgs = append(c.NodeArgs, "--raft-lease", ttl.String())
		}
	}
}

// cutScript cuts the leader off what elects it until another leads and meanwhile has
// returned.
func cutScript(meanwhile func(ctx context.Context, s *trialRun, r *Round, next fleetclient.Leader) error) loop {
	return loop{what: "cutting the leader off", do: func(ctx context.Context, s *trialRun, _ int, r *Round) error {
		r.Kind = "cut"
		_, err := s.inject(ctx, r, chaos.Spec{Kind: chaos.PartitionLeader, For: s.trial.TTL, Until: s.overtaken(r, func(ctx context.Context, next fleetclient.Leader) error {
			return meanwhile(ctx, s, r, next)
		})})
		if err != nil {
			return err
		}
		return s.down(ctx, r.Node, r.old())
	}}
}

// ignoreTrustEnd is the bug of a leader that goes on believing.
const ignoreTrustEnd = "ignore-trust-end"

// noRaftBelief is why a leader that goes on believing is tried with etcd alone.
const noRaftBelief = "A leader that goes on believing is tried with etcd alone: the bug is planted in the lease, which Raft does not use, and Raft itself ends the leadership of a node that hears no quorum. Late writes of a Raft leader come from the pauses of experiments 4 and 5."

// twoBelieve is experiment 3b.
func twoBelieve() Experiment {
	return Experiment{
		Name: "3b", Title: "the same with a leader that ignores the end of its trust", Seed: 3,
		Question:    "If a leader goes on believing, because of a bug, does its work still take no effect?",
		Expectation: "Two believe and both try to write. The ledger refuses the old one from the successor's seal on, with its token, and the old one then steps down. G3 is broken, as planted; all that concerns effects holds. " + noRaftBelief,
		Trials: func(size Size) []Trial {
			t := believeTrial(size, pick(size, 1, 20))
			t.Pass, t.Broken = effective(), []string{"one-believer"}
			return []Trial{t}
		},
		Judge: func(all []Outcome) (bars []Threshold, _ []Table) {
			for _, o := range all {
				bars = append(bars,
					count(o.Name+": the old leader tried and was refused", o.refusedRounds(), o.Trial.Rounds),
					none(o.Name+": stale writes accepted", o.Damage.Applied), none(o.Name+": numbers reused", o.Damage.Reused))
			}
			return bars, []Table{staleTable(all), roundTable(all)}
		},
	}
}

// effective are the checks of what took effect, and those that the history is sound.
func effective() []string {
	return []string{"token-order", "fence", "sequence", "linearizable", "ledger", "recovery", "once", "evidence", "history"}
}

// visits is how many calls are made at a successor while the old leader still believes.
const visits = 200

func believeTrial(size Size, rounds int) Trial {
	t := newTrial(etcdEngine, pick(size, 2*time.Second, 3*time.Second), 500, rounds, cutScript(func(ctx context.Context, s *trialRun, r *Round, next fleetclient.Leader) error {
		// Callers that have found the successor; the others still call the old leader.
		if err := s.take(ctx, next, visits, 10*time.Second); err != nil {
			return err
		}
		return s.stale(ctx, r)
	}))
	t.Name, t.Patience, t.Plant, t.Pass = "etcd-cut", 2*time.Second, []string{ignoreTrustEnd}, nil
	return t
}

func (o Outcome) refusedRounds() (n int) {
	for _, r := range o.Rounds {
		if r.Refused && r.SteppedDown && r.Mark > r.Token {
			n++
		}
	}
	return n
}

func staleTable(all []Outcome) Table {
	t := Table{Title: "stale writes", Head: []string{"trial", "refused", "accepted", "numbers reused", "calls answered", "outcome unknown"}}
	for _, o := range all {
		v, _ := o.Report.Verdict("sequence")
		t.add(o.Name, o.Damage.Refused, o.Damage.Applied, o.Damage.Reused, v.Count("calls answered"), v.Count("calls of unknown outcome"))
	}
	return t
}

// mostRounds is how many rounds a table shows; all are in the JSON.
const mostRounds = 12

func roundTable(all []Outcome) Table {
	t := Table{Title: "rounds", Head: []string{"trial", "round", "old leader", "token", "successor", "token", "the late write"}}
	for _, o := range all {
		for i, r := range o.Rounds {
			if i == mostRounds {
				t.add(o.Name, fmt.Sprintf("and %d more", len(o.Rounds)-i), "", "", "", "", "")
				break
			}
			late := "none"
			switch {
			case r.Refused:
				late = fmt.Sprintf("refused: token %d is below %d; stepped down: %v", r.Token, r.Mark, r.SteppedDown)
			case r.Applied:
				late = fmt.Sprintf("ACCEPTED with token %d below %d", r.Token, r.Mark)
			}
			t.add(o.Name, i+1, r.Node, r.Token, r.Successor, r.Next, late)
		}
	}
	return t
}

// pauseBetween is experiment 4.
func pauseBetween() Experiment {
	return Experiment{
		Name: "4", Title: "a pause between a check and a write", Seed: 4,
		Question:    "A leader has checked its term, stands still until another has sealed the ledger, and then writes at once. What becomes of that write?",
		Expectation: "It is refused in every round, with its token, and the node steps down by itself. No clock and no check could have kept it from trying.",
		Trials: func(size Size) []Trial {
			rounds := pick(size, 2, 100)
			trials := []Trial{pauseTrial(etcdEngine, 2*time.Second, rounds, 0), pauseTrial(raftEngine, time.Second, rounds, 0)}
			trials[0].Workers = pick(size, 1, 0)
			if size == Full {
				long := pauseTrial(etcdEngine, 8*time.Second, 1, 45*time.Second)
				long.Name, long.Workers = "etcd-8s-freeze-45s", 2
				trials = append(trials, long)
			}
			return trials
		},
		Judge: func(all []Outcome) (bars []Threshold, _ []Table) {
			tables := []Table{staleTable(all), roundTable(all)}
			for _, o := range all {
				bars = append(bars,
					count(o.Name+": refused, with its token, and stepped down", o.refusedRounds(), o.Trial.Rounds),
					none(o.Name+": stale writes accepted", o.Damage.Applied))
				tables = append(tables, story(o))
			}
			return bars, tables
		},
	}
}

// pauseTrial stops the leader between a check and its write, for some time (0: a little
// more than the TTL) and until another has sealed the ledger.
func pauseTrial(engine string, ttl time.Duration, rounds int, least time.Duration) Trial {
	if least == 0 {
		least = ttl + 500*time.Millisecond
	}
	script := loop{what: "stopping the leader between a check and its write", do: func(ctx context.Context, s *trialRun, _ int, r *Round) error {
		r.Kind = "pause"
		_, err := s.inject(ctx, r, chaos.Spec{Kind: chaos.PauseLeader, For: least, Between: true, Until: s.overtaken(r, func(ctx context.Context, next fleetclient.Leader) error {
			return s.take(ctx, next, visits, 10*time.Second)
		})})
		if err != nil {
			return err
		}
		if err := s.stale(ctx, r); err != nil {
			return err
		}
		return s.down(ctx, r.Node, r.old())
	}}
	t := newTrial(engine, ttl, 500, rounds, script)
	t.Patience = patience // a caller that waits for longer than the pause gets what the late write brings
	t.play = func(ctx context.Context, s *trialRun) error {
		watched, err := s.watchWorkers(ctx)
		if err != nil {
			return err
		}
		defer watched()
		return script.play(ctx, s)
	}
	return t
}

// fencingOff is experiment 5.
func fencingOff() Experiment {
	return Experiment{
		Name: "5", Title: "fencing off, and on again", Seed: 5,
		Question:    "Is it the fence that protects? What happens in 3b and 4 without it?",
		Expectation: "Without the fence stale writes are accepted and numbers are handed out twice, in every trial. With it, and the same seed, neither happens once. " + noRaftBelief,
		Trials: func(size Size) (all []Trial) {
			rounds := pick(size, 1, 10)
			for _, t := range []Trial{believeTrial(size, rounds), pauseTrial(etcdEngine, 2*time.Second, rounds, 0), pauseTrial(raftEngine, time.Second, rounds, 0)} {
				off, on := t, t
				off.Name, off.Unfenced = t.Name+"/off", true
				off.Pass, off.Broken, off.Told = []string{"token-order", "evidence", "history"}, []string{"fence"}, []string{"sequence", "ledger"}
				on.Name, on.Pass = t.Name+"/on", effective()
				all = append(all, off, on)
			}
			return all
		},
		Judge: func(all []Outcome) (bars []Threshold, _ []Table) {
			for _, o := range all {
				if o.Unfenced {
					bars = append(bars, above(o.Name+": stale writes accepted", o.Damage.Applied), above(o.Name+": numbers reused", o.Damage.Reused))
					continue
				}
				bars = append(bars, none(o.Name+": stale writes accepted", o.Damage.Applied), none(o.Name+": numbers reused", o.Damage.Reused), above(o.Name+": stale writes refused", o.Damage.Refused))
			}
			return bars, []Table{staleTable(all), roundTable(all)}
		},
	}
}

// The kinds of handover.
const (
	stepDown = "step-down"
	transfer = "transfer"
)

// handover is experiment 7.
func handover() Experiment {
	return Experiment{
		Name: "7", Title: "step-down and transfer", Seed: 7,
		Question:    "How long does nobody write when a leader hands over in order, and do two ever write at once?",
		Expectation: "The old leader's last attempt comes before the new one's first in every round, by some milliseconds; it stops within one beat of being asked.",
		Trials: func(size Size) (all []Trial) {
			for _, t := range []Trial{
				newTrial(etcdEngine, pick(size, 2*time.Second, 3*time.Second), pick(size, 500.0, 5000), pick(size, 10, 200), handoverScript()),
				newTrial(raftEngine, time.Second, pick(size, 500.0, 5000), pick(size, 10, 200), handoverScript()),
			} {
				t.Pass = safe("baton")
				all = append(all, t)
			}
			return all
		},
		Judge:  judgeHandover,
		figure: drawGaps,
	}
}

// handoverScript is no fault: the history of these rounds has none.
func handoverScript() loop {
	return loop{
		what: "the leader hands over", busy: true,
		wait: func(s *trialRun, _ int) time.Duration {
			return 200*time.Millisecond + time.Duration(s.rng.Int64N(int64(200*time.Millisecond)))
		},
		do: func(ctx context.Context, s *trialRun, i int, r *Round) error {
			r.Kind = stepDown
			// The client may remember another node: it is to look again first.
			_, err := s.nodes.Leader(ctx)
			if err != nil {
				return err
			}
			r.AskedAt = int64(now())
			if i%2 == 0 {
				_, err = s.nodes.Resign(ctx, r.old())
			} else {
				others := s.others(r.Node)
				r.Kind, r.Other = transfer, others[s.rng.IntN(len(others))]
				r.AskedAt = int64(now())
				_, err = s.nodes.Transfer(ctx, r.Other, r.old())
			}
			if err != nil {
				return fmt.Errorf("%s of %s (token %d): %w", r.Kind, r.Node, r.Token, err)
			}
			next, err := s.leader(ctx, r.old())
			r.followed(next)
			return err
		},
	}
}

func judgeHandover(all []Outcome) (bars []Threshold, _ []Table) {
	gapTable := Table{Title: "gap: last attempt to write of the old leader to the first of the new", Head: seriesHead("trial")}
	stopTable := Table{Title: "from being asked to the last attempt to write, the handover's own record included", Head: seriesHead("trial")}
	for _, o := range all {
		gaps, stops := gapsOf(o)
		good, named, transfers := 0, 0, 0
		for _, r := range o.Rounds {
			if r.Kind == transfer {
				if transfers++; r.Successor == r.Other {
					named++
				}
			}
		}
		var every, between series
		for _, kind := range []string{stepDown, transfer} {
			for _, g := range gaps[kind] {
				if g >= 0 {
					good++
				}
			}
			between, every = append(between, gaps[kind]...), append(every, stops[kind]...)
			gapTable.Rows = append(gapTable.Rows, gaps[kind].row(o.Name+" "+kind))
			stopTable.Rows = append(stopTable.Rows, stops[kind].row(o.Name+" "+kind))
		}
		bars = append(bars,
			count(o.Name+": gap of at least 0", good, o.Trial.Rounds),
			below(o.Name+": nobody waits for a TTL", between, o.TTL/2, o.Trial.Rounds),
			count(o.Name+": handed to whom it was transferred", named, transfers),
			below(o.Name+": protected writes stop within one beat", every, time.Duration(o.Report.Run.BeatMS)*time.Millisecond, o.Trial.Rounds))
	}
	return bars, []Table{gapTable, stopTable}
}

// gapsOf are the gaps of a trial's handovers, and how long each took to stop, by kind.
func gapsOf(o Outcome) (gaps, stops map[string]series) {
	gaps, stops = map[string]series{}, map[string]series{}
	for _, r := range o.Rounds {
		if c, ok := changeOf(o.Report, r); ok {
			gaps[r.Kind] = append(gaps[r.Kind], c.gap())
			stops[r.Kind] = append(stops[r.Kind], c.old.LastAttempt.Sub(clock.Instant(r.AskedAt)))
		}
	}
	return gaps, stops
}

// term is the one with a token; zero: there is none.
func (o Outcome) term(token uint64) (t check.Term) {
	for _, x := range o.Report.Terms {
		if uint64(x.Token) == token {
			return x
		}
	}
	return t
}
