package check

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tenurehq/tenure/lab/facts"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/linearizable"
	"github.com/tenurehq/tenure/lab/verdict"
)

// possible reports whether an answered call can have happened.
func possible(c history.Call) bool { return c.First > 0 && c.Last >= c.First && c.End >= c.Start }

// sequence is G6 as the clients saw it: a number is larger than every number that anybody
// had when it was asked for, none is handed out twice, and the token does not fall, neither
// in time nor along the numbers.
func sequence(v *verdict.Verdict, f *facts.Facts) watcher {
	var (
		tokens facts.Peaks
		used   facts.Ranges
		most   uint64 // the largest number of numbers in one answer
	)
	call := func(c history.Call) {
		switch {
		case !c.ForNumbers():
		case c.Unknown:
			v.Add("calls of unknown outcome")
		case c.Error != "":
			v.Add("calls failed")
		default:
			if v.Add("calls answered"); !possible(c) {
				v.Doubt(at{c.Line}, "an impossible answer: numbers %d to %d, from %d to %d", c.First, c.Last, c.Start, c.End)
			}
		}
	}
	// fell finds that a value is below that of a call which ended before.
	fell := func(now history.Call, before facts.Peak, what, after string, value uint64) {
		if before.Sure {
			v.Violated(at{now.Line, before.Line}, what+" %v after "+after, value, now.Start.Sub(before.End), before.Value)
		} else {
			v.Doubt(at{now.Line, before.Line}, what+" to a call that began too long ago to compare it with all others", value)
		}
	}
	answer := func(now history.Call, before facts.Peak) {
		size, token := now.Last-now.First+1, uint64(now.Token)
		*v.Counter("numbers") += int64(size)
		if before.Value >= now.First {
			fell(now, before, "number %d was handed out", "%d had been", now.First)
		}
		if high := tokens.Before(now.Start); high.Value > token {
			fell(now, high, "token %d answered", "token %d had", token)
		}
		tokens.Add(now, token)
		if f.Whole() && f.Accepted.Holding(now.Token, now.First, now.Last) == nil {
			v.Violated(at{now.Line}, "a client has %d to %d under token %d, and no effect in the history has that range", now.First, now.Last, now.Token)
		}
		most = max(most, size)
		if fresh := used.Add(now.First, now.Last); !fresh {
			v.Violations++
			if len(f.Reused) < verdict.MaxFindings {
				f.Reused = append(f.Reused, facts.Reuse{Call: now})
			}
		}
		f.Room(len(used), facts.Max)
	}
	end := func() {
		*v.Counter("tokens") = int64(len(f.Answers))
		for _, c := range f.Reused {
			what := fmt.Sprintf("number %d was handed out before", c.First)
			if c.First != c.Last {
				what = fmt.Sprintf("some of the numbers %d to %d were handed out before", c.First, c.Last)
			}
			v.Find(verdict.Finding{What: what, At: at{c.Line, c.FirstUse}})
		}
		// Every number that took effect was answered, or the outcome of its call is unknown.
		unknown := v.Count("calls of unknown outcome")
		if f.Whole() && f.Accepted.Sum > f.Callers.Numbers+uint64(unknown)*max(most, 1) {
			v.Violated(nil, "%d numbers took effect, and clients have %d of them and %d calls of unknown outcome: calls are missing", f.Accepted.Sum, f.Callers.Numbers, unknown)
		}
		var high *history.Call
		for _, token := range facts.Sorted(f.Answers) {
			s := f.Answers[token]
			if high != nil && high.Last >= s.Low.First {
				v.Violated(at{high.Line, s.Low.Line}, "token %d handed out %d, and the later token %d handed out %d", high.Token, high.Last, token, s.Low.First)
			}
			if high == nil || s.High.Last > high.Last {
				high = &s.High
			}
		}
	}
	return watcher{call: call, answer: answer, end: end}
}

const (
	window        = 4096             // calls that porcupine is given at once
	windowTimeout = 20 * time.Second // for each; it takes milliseconds
	smallest      = window / 8       // smaller windows are not split after a timeout
)

// inOneOrder is G6 by porcupine: there is an order of all calls, each between its start
// and its end, in which the numbers rise and the tokens do not fall.
//
// Porcupine gets the calls in windows, so that time and memory are bounded. Each window
// also has the calls that had the largest number when one of its calls began: a call that
// is out of order contradicts one of those, or one in its window. Numbers may be skipped,
// so every subset of a good history is good, and a window that fails is a violation. A
// window that porcupine does not decide in time is split. If its parts are not decided
// either, the verdict is unknown.
func inOneOrder(ctx context.Context, decide linearizable.Decide) func(*verdict.Verdict, *facts.Facts) watcher {
	return func(v *verdict.Verdict, _ *facts.Facts) watcher {
		var calls, added []history.Call // added has the extra call of each call, without a line if there is none
		var check func(calls, added []history.Call)
		check = func(calls, added []history.Call) {
			if ctx.Err() != nil || len(calls) == 0 {
				return
			}
			seen := map[history.Place]bool{{}: true}
			var all []history.Call
			for _, c := range slices.Concat(calls, added) {
				if !seen[c.Line] {
					seen[c.Line] = true
					all = append(all, c)
				}
			}
			from := all[0].Line
			switch result, places, what := linearizable.Check(all, windowTimeout, decide); result {
			case porcupine.Ok:
			case porcupine.Illegal:
				v.Violated(places, "no order of the calls explains their numbers: %s", what)
			case porcupine.Unknown:
				if half := len(calls) / 2; half >= smallest {
					check(calls[:half], added[:half])
					check(calls[half:], added[half:])
					return
				}
				v.Doubt(at{from}, "porcupine did not decide within %v on the %d calls from here", windowTimeout, len(all))
			}
		}
		next := func() {
			if len(calls) > 0 {
				v.Add("windows")
			}
			check(calls, added)
			calls, added = calls[:0], added[:0]
		}
		return watcher{end: next, answer: func(now history.Call, before facts.Peak) {
			v.Add("calls answered")
			calls, added = append(calls, now), append(added, before.Call)
			if len(calls) == window {
				next()
			}
		}}
	}
}
