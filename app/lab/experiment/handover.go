package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/clock"
)

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
		Trials: func(size Size) []Trial {
			trial := func(engine string, ttl time.Duration) Trial {
				return Trial{
					Name: fmt.Sprintf("%s-%v", engine, ttl), Engine: engine, TTL: ttl, Nodes: 3, Rate: pick(size, 500.0, 5000), Rounds: pick(size, 10, 200),
					Patience: time.Second, Pass: safe("baton"), play: handoverRounds,
				}
			}
			return []Trial{trial(etcdEngine, pick(size, 2*time.Second, 3*time.Second)), trial(raftEngine, time.Second)}
		},
		Judge:  judgeHandover,
		figure: drawGaps,
	}
}

func handoverRounds(ctx context.Context, s *stage) error {
	for i := range s.trial.Rounds {
		if err := s.hold(ctx, 200*time.Millisecond+time.Duration(s.rng.Int64N(int64(200*time.Millisecond)))); err != nil {
			return err
		}
		old, err := s.leader(ctx, 0)
		if err != nil {
			return err
		}
		var others []string
		for _, n := range s.file.Nodes {
			if n.ID != old.ID {
				others = append(others, n.ID)
			}
		}
		r := Round{Kind: stepDown, Node: old.ID, Token: uint64(old.Token)}
		// The client may remember another node: it is to look again first.
		if _, err := s.nodes.Leader(ctx); err != nil {
			return err
		}
		asked := now()
		if i%2 == 0 {
			_, err = s.nodes.Resign(ctx, old.Token)
		} else {
			r.Kind, r.Other = transfer, others[s.rng.IntN(len(others))]
			_, err = s.nodes.Transfer(ctx, r.Other, old.Token)
		}
		if err != nil {
			return fmt.Errorf("%s of %s (token %d): %w", r.Kind, old.ID, old.Token, err)
		}
		r.AskedAt = int64(asked)
		next, err := s.leader(ctx, old.Token)
		if err != nil {
			return err
		}
		r.Successor, r.Next = next.ID, uint64(next.Token)
		s.say("round %d of %d: %s, %s (token %d) to %s (token %d)", i+1, s.trial.Rounds, r.Kind, r.Node, r.Token, r.Successor, r.Next)
		s.rounds = append(s.rounds, r)
		s.round()
	}
	return nil
}

func judgeHandover(all []Outcome) ([]Threshold, []Table) {
	var bars []Threshold
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
			between = append(between, gaps[kind]...)
			gapTable.Rows = append(gapTable.Rows, gaps[kind].row(o.Name+" "+kind))
			every = append(every, stops[kind]...)
			stopTable.Rows = append(stopTable.Rows, stops[kind].row(o.Name+" "+kind))
		}
		beat := time.Duration(o.Report.Run.BeatMS) * time.Millisecond
		bars = append(bars,
			count(o.Name+": gap of at least 0", good, o.Trial.Rounds),
			below(o.Name+": nobody waits for a TTL", between, o.TTL/2, o.Trial.Rounds),
			count(o.Name+": handed to whom it was transferred", named, transfers),
			below(o.Name+": protected writes stop within one beat", every, beat, o.Trial.Rounds))
	}
	return bars, []Table{gapTable, stopTable}
}

// gapsOf are the gaps of a trial's handovers, and how long each took to stop, by kind.
func gapsOf(o Outcome) (gaps, stops map[string]series) {
	gaps, stops = map[string]series{}, map[string]series{}
	for _, r := range o.Rounds {
		c, ok := changeOf(o.Report, r)
		if !ok {
			continue
		}
		gaps[r.Kind] = append(gaps[r.Kind], c.gap())
		stops[r.Kind] = append(stops[r.Kind], c.old.LastAttempt.Sub(clock.Instant(r.AskedAt)))
	}
	return gaps, stops
}
