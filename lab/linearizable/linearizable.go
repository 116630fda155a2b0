// Package linearizable asks porcupine whether the calls of clients to a sequence of numbers
// can be put in an order in which the numbers rise and the tokens do not fall.
package linearizable

import (
	"cmp"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tenurehq/tenure/lab/history"
)

// Decide is porcupine.CheckOperationsTimeout, or another for tests.
type Decide = func(porcupine.Model, []porcupine.Operation, time.Duration) porcupine.CheckResult

// Check decides on calls, which it sorts, within a time. If there is no order, it names two
// calls that contradict each other.
func Check(calls []history.Call, within time.Duration, decide Decide) (result porcupine.CheckResult, places []history.Place, what string) {
	if result = decide(sequenceModel(), operations(calls), within); result == porcupine.Illegal {
		places, what = contradiction(calls)
	}
	return result, places, what
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

// contradiction names two calls, sorted by number, that contradict each other.
func contradiction(calls []history.Call) ([]history.Place, string) {
	for i := 1; i < len(calls); i++ {
		a, b := calls[i-1], calls[i]
		switch {
		case a.Last >= b.First:
			return []history.Place{b.Line, a.Line}, "a number was handed out twice"
		case a.Token > b.Token:
			return []history.Place{b.Line, a.Line}, "a larger number has a smaller token"
		}
	}
	latest := calls[0]
	for _, call := range calls[1:] {
		if call.End < latest.Start {
			return []history.Place{latest.Line, call.Line}, "a number was asked for after a larger one had been handed out"
		}
		if call.Start > latest.Start {
			latest = call
		}
	}
	return []history.Place{calls[0].Line}, "in the window that begins here"
}
