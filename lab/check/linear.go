package check

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	window        = 4096             // calls that porcupine is given at once
	windowTimeout = 20 * time.Second // for each; it takes milliseconds
	smallest      = window / 8       // calls that are not split further after a timeout
)

// linear is G6 by porcupine: there is an order of all calls, each somewhere between its
// start and its end, in which the numbers rise and tokens do not fall.
//
// The calls are given to it in windows, so that it ends in bounded time and memory. To
// each window those calls are added that had the largest number when one of its calls
// began: a call that is out of order is so against one of those, or within its window.
// Any choice of calls of a good history is a good history, since numbers may be
// skipped; so a window that fails is a violation. A window that porcupine does not decide
// in time is split; if its parts are not decided either, the verdict is unknown.
type linear struct {
	*tally
	check func(porcupine.Model, []porcupine.Operation, time.Duration) porcupine.CheckResult
	calls []callAt
	seen  map[Place]bool
	extra []callAt // for each of calls the one that is added; it has no place if there is none
}

func newLinear() *linear {
	return &linear{check: porcupine.CheckOperationsTimeout, tally: newTally("G6", "linearizable", "calls answered", "windows"), seen: map[Place]bool{}}
}

func (c *linear) call(ctx context.Context, now, before callAt) {
	c.count("calls answered")
	c.calls = append(c.calls, now)
	c.extra = append(c.extra, before)
	if len(c.calls) == window {
		c.cut(ctx)
	}
}

func (c *linear) cut(ctx context.Context) {
	if len(c.calls) == 0 {
		return
	}
	c.count("windows")
	c.decide(ctx, c.calls, c.extra)
	c.calls, c.extra = c.calls[:0], c.extra[:0]
}

func (c *linear) decide(ctx context.Context, calls, extra []callAt) {
	if ctx.Err() != nil {
		return
	}
	clear(c.seen)
	all := make([]callAt, 0, len(calls)+len(extra))
	for _, part := range [][]callAt{calls, extra} {
		for _, call := range part {
			if call.at.File != "" && !c.seen[call.at] {
				c.seen[call.at] = true
				all = append(all, call)
			}
		}
	}
	from := all[0].at
	switch c.check(sequenceModel(), operations(all), windowTimeout) {
	case porcupine.Ok:
	case porcupine.Illegal:
		at, what := culprit(all)
		c.violated(at, "no order of the calls explains their numbers: %s", what)
	case porcupine.Unknown:
		if half := len(calls) / 2; half >= smallest {
			c.decide(ctx, calls[:half], extra[:half])
			c.decide(ctx, calls[half:], extra[half:])
			return
		}
		c.doubt([]Place{from}, "porcupine did not end within %v on the %d calls from here", windowTimeout, len(all))
	}
}

func (c *linear) verdict(ctx context.Context) Verdict {
	c.cut(ctx)
	return c.tally.verdict()
}

// state is what a sequence has handed out last.
type state struct{ last, token uint64 }

// asked is a call and the number that must have been the last before it. Since numbers
// rise there is only one order that can be right, and to name each call's predecessor
// spares porcupine the search through those that cannot: with hundreds of calls under
// way at once there are too many.
type asked struct{ after uint64 }

func sequenceModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{} },
		Step: func(s, in, out any) (bool, any) {
			was, call := s.(state), out.(*callAt)
			if was.last != in.(asked).after || call.first <= was.last || uint64(call.token) < was.token {
				return false, s
			}
			return true, state{call.last, uint64(call.token)}
		},
		Hash: func(s any) uint64 { return s.(state).last },
	}
}

func operations(calls []callAt) []porcupine.Operation {
	slices.SortFunc(calls, func(a, b callAt) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.end, b.end)) })
	ops := make([]porcupine.Operation, len(calls))
	var after uint64
	for i, call := range calls {
		ops[i] = porcupine.Operation{Input: asked{after}, Call: int64(call.start), Output: &calls[i], Return: int64(call.end)}
		after = call.last
	}
	return ops
}

// culprit names two calls, sorted by number, that cannot both be right.
func culprit(calls []callAt) (at []Place, what string) {
	for i := 1; i < len(calls); i++ {
		a, b := calls[i-1], calls[i]
		switch {
		case a.last >= b.first:
			return []Place{b.at, a.at}, "a number was handed out twice"
		case a.token > b.token:
			return []Place{b.at, a.at}, "a larger number has a smaller token"
		}
	}
	latest := calls[0]
	for _, call := range calls[1:] {
		if call.end < latest.start {
			return []Place{latest.at, call.at}, "a number was asked for after a larger one had been handed out"
		}
		if call.start > latest.start {
			latest = call
		}
	}
	return []Place{calls[0].at}, "in the window that begins here"
}
