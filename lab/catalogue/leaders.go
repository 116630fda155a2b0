package catalogue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/plot"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
)

// cut is experiment 3.
func cut() experiment.Experiment {
	return experiment.Experiment{
		Name: "3", Title: "leader cut off from the engine, not from the ledger", Seed: 3,
		Question:    "Does a leader that the engine no longer hears stop before the next one is granted?",
		Expectation: "Its own trust ends before its lease, or its followers' patience, can: no two believe at once, it makes no attempt to write after the successor's term began, so the ledger has nothing to refuse. Raft's own lease, which would unseat the leader even earlier, is set to the followers' patience, so that it does not hide that.",
		Trials: func(size experiment.Size) []trial.Trial {
			all := both(experiment.Pick(size, 2*time.Second, 3*time.Second), experiment.Pick(size, 500.0, 5000), experiment.Pick(size, 1, 20), cutScript(func(ctx context.Context, s *trial.Run, r *trial.Round, _ inspect.Target) error {
				return s.Down(ctx, r.Node, r.Token)
			}))
			all[1].Fleet = trustFirst(all[1])
			return all
		},
		Judge: func(j measure.Judge, o trial.Outcome) {
			early := early(o)
			j.Above0("stopped believing before the next term", fmt.Sprintf("> 0, %d rounds", o.Trial.Rounds), early, o.Trial.Rounds)
			j.None("stale attempts", o.Damage.Refused+o.Damage.Applied)
			ownTrust(j, o, o.Trial.Rounds)
			j.Series("how long before the successor's term the old one ended", o.Name, early)
		},
	}
}

// early measures how long before the successor's term the old leader stopped believing.
func early(o trial.Outcome) measure.Series {
	return o.Measure(func(r trial.Round) (time.Duration, bool) {
		old, next, ok := o.Change(r)
		return next.Began.Sub(old.Ended), ok
	})
}

// The causes of a term's end: the leader's own clock, and Raft.
const (
	causeExpired = "expired"
	causeLost    = "lost"
)

// endedBy counts the rounds whose old term ended for a cause.
func endedBy(o trial.Outcome, cause string) int {
	return o.Count(func(r trial.Round) bool { return o.Term(r.Token).Cause == cause })
}

// ownTrust requires that the leader's own trust ended its term. On Raft the library's lease
// ends a fourteenth of the TTL later, so that a stall of that length may let it be first:
// nine of ten are required.
func ownTrust(j measure.Judge, o trial.Outcome, rounds int) {
	const name = "ended by the leader's own trust"
	n := endedBy(o, causeExpired)
	if least := (9*rounds + 9) / 10; o.Engine == trial.Raft {
		j.Bar(name, fmt.Sprintf("%d of %d", n, rounds), fmt.Sprintf(">= %d of %d", least, rounds), rounds > 0 && n >= least)
		return
	}
	j.Count(name, n, rounds)
}

// trustFirst keeps Raft from ending the leadership before the leader's trust ends. Otherwise
// a round would measure Raft's lease, which injected clocks do not affect.
func trustFirst(t trial.Trial) func(*lab.Config) {
	return func(c *lab.Config) {
		if t.Engine == trial.Raft {
			c.NodeArgs = append(c.NodeArgs, "--raft-lease", t.TTL.String())
		}
	}
}

// cutScript cuts the leader off from what elects it, until another node leads and meanwhile
// has returned.
func cutScript(meanwhile func(ctx context.Context, s *trial.Run, r *trial.Round, next inspect.Target) error) trial.Loop {
	return trial.Loop{What: "cutting the leader off", Round: func(ctx context.Context, s *trial.Run, _ int, r *trial.Round) error {
		r.Kind = "cut"
		_, err := s.Inject(ctx, r, chaos.Spec{Kind: chaos.PartitionLeader, For: s.TTL, Until: s.Overtaken(r, func(ctx context.Context, next inspect.Target) error {
			return meanwhile(ctx, s, r, next)
		})})
		if err != nil {
			return err
		}
		return s.Down(ctx, r.Node, r.Token)
	}}
}

// noRaftBelief is why a leader that ignores the end of its trust is tested with etcd only.
const noRaftBelief = "A leader that goes on believing is tried with etcd alone: the bug is planted in the lease, which Raft does not use, and Raft itself ends the leadership of a node that hears no quorum. Late writes of a Raft leader come from the pauses of experiments 4 and 5."

// twoBelieve is experiment 3b.
func twoBelieve() experiment.Experiment {
	return experiment.Experiment{
		Name: "3b", Title: "the same with a leader that ignores the end of its trust", Seed: 3,
		Question:    "If a leader goes on believing, because of a bug, does its work still take no effect?",
		Expectation: "Two believe and both try to write. The ledger refuses the old one from the successor's seal on, with its token, and the old one then steps down. G3 is broken, as planted; all that concerns effects holds. " + noRaftBelief,
		Trials: func(size experiment.Size) []trial.Trial {
			t := believeTrial(size, experiment.Pick(size, 1, 20))
			t.Pass, t.Broken = effective(), []string{"one-believer"}
			return []trial.Trial{t}
		},
		Judge: func(j measure.Judge, o trial.Outcome) {
			j.Count("the old leader tried and was refused", refusedRounds(o), o.Trial.Rounds)
			j.None("stale writes accepted", o.Damage.Applied)
			j.None("numbers reused", o.Damage.Reused)
			staleTables(j, o)
		},
	}
}

// effective lists the checks of effects, and of the history itself.
func effective() []string {
	return []string{"token-order", "fence", "sequence", "linearizable", "ledger", "recovery", "once", "evidence", "history"}
}

// takeNumbers makes calls to a successor while the old leader is still cut off or stopped.
func takeNumbers(ctx context.Context, s *trial.Run, next inspect.Target) error {
	return s.Take(ctx, next, 200, 10*time.Second)
}

// believeTrial cuts off a leader that ignores the end of its trust.
func believeTrial(size experiment.Size, rounds int) trial.Trial {
	t := trial.New(trial.Etcd, experiment.Pick(size, 2*time.Second, 3*time.Second), 500, rounds, cutScript(func(ctx context.Context, s *trial.Run, r *trial.Round, next inspect.Target) error {
		// These callers know the successor; the others still call the old leader.
		if err := takeNumbers(ctx, s, next); err != nil {
			return err
		}
		return s.Stale(ctx, r)
	}))
	t.Name, t.Patience, t.Plant = "etcd-cut", 2*time.Second, []string{"ignore-trust-end"}
	return t
}

func refusedRounds(o trial.Outcome) int {
	return o.Count(func(r trial.Round) bool { return r.Refused && r.SteppedDown && r.Mark > r.Token })
}

// staleTables adds the outcomes of stale writes, in total and in each round.
func staleTables(j measure.Judge, o trial.Outcome) {
	o.StaleWrites(j)
	const most = 12 // the JSON has all
	head := []string{"round", "old leader", "token", "successor", "token", "the late write"}
	for i, r := range o.Rounds {
		if i == most {
			j.Row("rounds", head, fmt.Sprintf("and %d more", len(o.Rounds)-i), "", "", "", "", "")
			break
		}
		late := "none"
		switch {
		case r.Refused:
			late = fmt.Sprintf("refused: token %d is below %d; stepped down: %v", r.Token, r.Mark, r.SteppedDown)
		case r.Applied:
			late = fmt.Sprintf("ACCEPTED with token %d below %d", r.Token, r.Mark)
		}
		j.Row("rounds", head, i+1, r.Node, r.Token, r.Successor, r.Next, late)
	}
}

// pauseBetween is experiment 4.
func pauseBetween() experiment.Experiment {
	return experiment.Experiment{
		Name: "4", Title: "a pause between a check and a write", Seed: 4,
		Question:    "A leader has checked its term, stands still until another has sealed the ledger, and then writes at once. What becomes of that write?",
		Expectation: "It is refused in every round, with its token, and the node steps down by itself. No clock and no check could have kept it from trying.",
		Trials: func(size experiment.Size) []trial.Trial {
			rounds := experiment.Pick(size, 2, 100)
			trials := []trial.Trial{pauseTrial(trial.Etcd, 2*time.Second, rounds, 0), pauseTrial(trial.Raft, time.Second, rounds, 0)}
			trials[0].Workers = experiment.Pick(size, 1, 0)
			if size == experiment.Full {
				long := pauseTrial(trial.Etcd, 8*time.Second, 1, 45*time.Second)
				long.Name, long.Workers = "etcd-8s-freeze-45s", 2
				trials = append(trials, long)
			}
			return trials
		},
		Judge: func(j measure.Judge, o trial.Outcome) {
			j.Count("refused, with its token, and stepped down", refusedRounds(o), o.Trial.Rounds)
			j.None("stale writes accepted", o.Damage.Applied)
			staleTables(j, o)
			story(j, o)
		},
	}
}

// pauseTrial stops the leader between a check and its write, for a time (0: a little more
// than the TTL) and until another node has sealed the ledger.
func pauseTrial(engine string, ttl time.Duration, rounds int, least time.Duration) trial.Trial {
	script := trial.Loop{What: "stopping the leader between a check and its write", Round: func(ctx context.Context, s *trial.Run, _ int, r *trial.Round) error {
		r.Kind = "pause"
		_, err := s.Inject(ctx, r, chaos.Spec{Kind: chaos.PauseLeader, For: cmp.Or(least, ttl+500*time.Millisecond), Between: true, Until: s.Overtaken(r, func(ctx context.Context, next inspect.Target) error {
			return takeNumbers(ctx, s, next)
		})})
		if err != nil {
			return err
		}
		if err := s.Stale(ctx, r); err != nil {
			return err
		}
		return s.Down(ctx, r.Node, r.Token)
	}}
	t := trial.New(engine, ttl, 500, rounds, script)
	t.Patience = trial.Patience // a caller that waits longer than the pause gets the answer of the late write
	t.Play = func(ctx context.Context, s *trial.Run) error {
		stop, err := s.WatchWorkers(ctx)
		if err != nil {
			return err
		}
		defer stop()
		return script.Play(ctx, s)
	}
	return t
}

// story adds the first round of a pause as leader, engine, standby, callers and workers saw
// it.
func story(j measure.Judge, o trial.Outcome) {
	t := j.Table(o.Name+": the first round, in seconds since the leader stood still", "at", "who", "what")
	if len(o.Rounds) == 0 || len(o.Report.Faults) == 0 {
		return
	}
	old, next, ok := o.Change(o.Rounds[0])
	if !ok {
		return
	}
	type event struct {
		at        clock.Instant
		who, what string
	}
	var all []event
	add := func(at clock.Instant, who, format string, args ...any) {
		if at > 0 {
			all = append(all, event{at, who, fmt.Sprintf(format, args...)})
		}
	}
	pause, leader, standby := o.Report.Faults[0], "leader "+old.Node, "standby "+next.Node
	add(pause.Begun, leader, "has checked its term, token %d, and stands still before its write", old.Token)
	if next.Vacant < next.Began { // a later one was seen by the old leader after its pause
		add(next.Vacant, "engine", "its session is over: nobody leads")
	}
	add(next.Began, standby, "leads with token %d", next.Token)
	add(next.FirstAttempt, standby, "writes for the first time, the ledger being sealed")
	add(next.FirstAnswer, "callers", "are answered under token %d", next.Token)
	// The end of the fault is read after the process was continued: what it did may be earlier.
	add(slices.Min(append([]clock.Instant{pause.Healed, old.Ended}, old.RefusedAt...)), leader, "goes on")
	for _, at := range old.RefusedAt[:min(3, len(old.RefusedAt))] {
		add(at, leader, "sends its write with token %d, and is refused", old.Token)
	}
	add(old.Ended, leader, "knows that its term is over (%s)", old.Cause)
	until := max(pause.Healed, old.Ended).Add(time.Second)
	var workers []string
	for _, s := range o.Orders {
		workers = append(workers, s.Worker)
	}
	slices.Sort(workers)
	for _, name := range slices.Compact(workers) {
		workerStory(name, o.Orders, old, until, add)
	}
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for _, m := range all {
		t.Add(fmt.Sprintf("%.3f", m.at.Sub(pause.Begun).Seconds()), m.who, m.what)
	}
}

// workerStory adds what a worker accepted and refused until an instant: the last order of the
// old leader, the first of the new, and what came of the old one afterwards.
func workerStory(name string, all []trial.WorkerCounts, old verdict.Term, until clock.Instant, add func(at clock.Instant, who, format string, args ...any)) {
	var before, last trial.WorkerCounts // of the old leader; of all
	for _, s := range all {
		if s.Worker != name || s.At > until {
			continue
		}
		switch {
		case s.Token <= old.Token:
			before = s
		case last.Token <= old.Token:
			add(s.At, name, "takes an order of token %d, and none below from now on; meanwhile it went on with its standing order, %d times", s.Token, s.Runs-before.Runs)
		}
		if s.Refused > last.Refused {
			add(s.At, name, "refuses orders with a token below %d (%d in all)", s.Token, s.Refused)
		}
		last = s
	}
	if before.At > 0 {
		add(before.At, name, "takes its order %d, the last of token %d", before.Accepted, before.Token)
	}
	if last.Worker != "" && last.Refused == 0 {
		add(until, name, "has taken %d orders (%d came twice and were done once) and refused none: the old leader sent it nothing after it woke up", last.Accepted, last.Duplicates)
	}
}

// fencingOff is experiment 5.
func fencingOff() experiment.Experiment {
	return experiment.Experiment{
		Name: "5", Title: "fencing off, and on again", Seed: 5,
		Question:    "Is it the fence that protects? What happens in 3b and 4 without it?",
		Expectation: "Without the fence stale writes are accepted and numbers are handed out twice, in every trial. With it, and the same seed, neither happens once. " + noRaftBelief,
		Trials: func(size experiment.Size) (all []trial.Trial) {
			rounds := experiment.Pick(size, 1, 10)
			for _, t := range []trial.Trial{believeTrial(size, rounds), pauseTrial(trial.Etcd, 2*time.Second, rounds, 0), pauseTrial(trial.Raft, time.Second, rounds, 0)} {
				off, on := t, t
				off.Name, off.Unfenced = t.Name+"/off", true
				off.Pass, off.Broken, off.Told = []string{"token-order", "evidence", "history"}, []string{"fence"}, []string{"sequence", "ledger"}
				on.Name, on.Pass = t.Name+"/on", effective()
				all = append(all, off, on)
			}
			return all
		},
		Judge: func(j measure.Judge, o trial.Outcome) {
			staleTables(j, o)
			if o.Unfenced {
				j.Some("stale writes accepted", o.Damage.Applied)
				j.Some("numbers reused", o.Damage.Reused)
				return
			}
			j.None("stale writes accepted", o.Damage.Applied)
			j.None("numbers reused", o.Damage.Reused)
			j.Some("stale writes refused", o.Damage.Refused)
		},
	}
}

// The kinds of handover.
const (
	stepDown = "step-down"
	transfer = "transfer"
)

// handover is experiment 7.
func handover() experiment.Experiment {
	return experiment.Experiment{
		Name: "7", Title: "step-down and transfer", Seed: 7,
		Question:    "How long does nobody write when a leader hands over in order, and do two ever write at once?",
		Expectation: "The old leader's last attempt comes before the new one's first in every round, by some milliseconds; it stops within one beat of being asked.",
		Trials: func(size experiment.Size) []trial.Trial {
			all := both(experiment.Pick(size, 2*time.Second, 3*time.Second), experiment.Pick(size, 500.0, 5000), experiment.Pick(size, 10, 200), trial.Loop{
				What: "the leader hands over", Busy: true, Round: handOver,
				Wait: func(s *trial.Run, _ int) time.Duration { return 200*time.Millisecond + s.UpTo(200*time.Millisecond) },
			})
			for i := range all {
				all[i].Pass = trial.Safe("baton")
			}
			return all
		},
		Judge: judgeHandover,
		Figures: func(all []trial.Outcome, note string) []experiment.Figure {
			g := plot.Gaps{Note: note}
			for _, o := range all {
				for _, kind := range []string{stepDown, transfer} {
					gaps, _ := handoverGaps(o, kind)
					g.Series = append(g.Series, plot.Series{Name: o.Name + " " + kind, Samples: gaps})
				}
			}
			return []experiment.Figure{{Name: "figure", Drawing: g}}
		},
	}
}

// handOver is not a fault: the history of these rounds has none.
func handOver(ctx context.Context, s *trial.Run, i int, r *trial.Round) error {
	r.Kind = stepDown
	// The client may have cached another node: find the leader first.
	_, err := s.Nodes.Leader(ctx)
	if err != nil {
		return err
	}
	r.AskedAt = clock.System().Now()
	if i%2 == 0 {
		_, err = s.Nodes.Resign(ctx, r.Token)
	} else {
		others := s.Others(r.Node)
		r.Kind, r.Other = transfer, others[s.Rand.IntN(len(others))]
		_, err = s.Nodes.Transfer(ctx, r.Other, r.Token)
	}
	if err != nil {
		return fmt.Errorf("%s of %s (token %d): %w", r.Kind, r.Node, r.Token, err)
	}
	return s.Succeeded(ctx, r, r.Token)
}

func judgeHandover(j measure.Judge, o trial.Outcome) {
	for _, kind := range []string{stepDown, transfer} {
		gaps, stops := handoverGaps(o, kind)
		j.Series("gap: last attempt to write of the old leader to the first of the new", o.Name+" "+kind, gaps)
		j.Series("from being asked to the last attempt to write, the handover's own record included", o.Name+" "+kind, stops)
	}
	gaps, stops := handoverGaps(o, "")
	transferred := o.Count(func(r trial.Round) bool { return r.Kind == transfer })
	j.Count("gap of at least 0", len(slices.DeleteFunc(slices.Clone(gaps), func(d time.Duration) bool { return d < 0 })), o.Trial.Rounds)
	j.Below("nobody waits for a TTL", gaps, o.TTL/2, o.Trial.Rounds)
	j.Count("handed to whom it was transferred", o.Count(func(r trial.Round) bool { return r.Kind == transfer && r.Successor == r.Other }), transferred)
	j.Below("protected writes stop within one beat", stops, time.Duration(o.Report.Run.BeatMS)*time.Millisecond, o.Trial.Rounds)
}

// handoverGaps measures the gap between the old leader's last attempt to write and the new
// leader's first, and how long the old leader took to stop, for a kind of handover or all.
func handoverGaps(o trial.Outcome, kind string) (gaps, stops measure.Series) {
	for _, r := range o.Rounds {
		if old, next, ok := o.Change(r); ok && (kind == "" || kind == r.Kind) {
			gaps, stops = append(gaps, next.FirstAttempt.Sub(old.LastAttempt)), append(stops, old.LastAttempt.Sub(r.AskedAt))
		}
	}
	return gaps, stops
}
