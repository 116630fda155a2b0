package check

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tenurehq/tenure/lab/facts"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

const (
	window        = 4096             // calls that porcupine is given at once
	windowTimeout = 20 * time.Second // for each; it takes milliseconds
	smallest      = window / 8       // smaller windows are not split after a timeout
)

type porcupineCheck = func(porcupine.Model, []porcupine.Operation, time.Duration) porcupine.CheckResult

// linearizable is G6 by porcupine: there is an order of all calls, each between its start
// and its end, in which the numbers rise and the tokens do not fall.
//
// Porcupine gets the calls in windows, so that time and memory are bounded. Each window
// also has the calls that had the largest number when one of its calls began: a call that
// is out of order contradicts one of those, or one in its window. Numbers may be skipped,
// so every subset of a good history is good, and a window that fails is a violation. A
// window that porcupine does not decide in time is split. If its parts are not decided
// either, the verdict is unknown.
func linearizable(ctx context.Context, decide porcupineCheck) func(*verdict.Verdict, *facts.Facts) watcher {
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
			switch decide(sequenceModel(), operations(all), windowTimeout) {
			case porcupine.Ok:
			case porcupine.Illegal:
				at, what := culprit(all)
				v.Violated(at, "no order of the calls explains their numbers: %s", what)
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

// handedOut is the last number that a sequence handed out, and its token.
type handedOut struct{ last, token uint64 }

// sequenceModel is a sequence of numbers. The input of a call is the number that must have
// been the last before it. Numbers rise, so only one order can be right; naming each call's
// predecessor saves porcupine the search through all others.
func sequenceModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return handedOut{} },
		Step: func(s, in, out any) (bool, any) {
			was, call := s.(handedOut), out.(*history.Call)
			if was.last != in.(uint64) || call.First <= was.last || uint64(call.Token) < was.token {
				return false, s
			}
			return true, handedOut{call.Last, uint64(call.Token)}
		},
		Hash: func(s any) uint64 { return s.(handedOut).last },
	}
}

func operations(calls []history.Call) []porcupine.Operation {
	slices.SortFunc(calls, func(a, b history.Call) int { return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.End, b.End)) })
	ops := make([]porcupine.Operation, len(calls))
	var after uint64
	for i, call := range calls {
		ops[i] = porcupine.Operation{Input: after, Call: int64(call.Start), Output: &calls[i], Return: int64(call.End)}
		after = call.Last
	}
	return ops
}

// culprit names two calls, sorted by number, that contradict each other.
func culprit(calls []history.Call) (at, string) {
	for i := 1; i < len(calls); i++ {
		a, b := calls[i-1], calls[i]
		switch {
		case a.Last >= b.First:
			return at{b.Line, a.Line}, "a number was handed out twice"
		case a.Token > b.Token:
			return at{b.Line, a.Line}, "a larger number has a smaller token"
		}
	}
	latest := calls[0]
	for _, call := range calls[1:] {
		if call.End < latest.Start {
			return at{latest.Line, call.Line}, "a number was asked for after a larger one had been handed out"
		}
		if call.Start > latest.Start {
			latest = call
		}
	}
	return at{calls[0].Line}, "in the window that begins here"
}
