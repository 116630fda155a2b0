package check

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// callAt is an answered call for numbers.
type callAt struct {
	start, end  clock.Instant
	first, last uint64
	token       fence.Token
	at          Place
}

// sequence is G6 as the callers saw it: a number is larger than every number that
// anybody had when it was asked for, none is handed out twice, and the token does not
// fall, neither in time nor along the numbers.
type sequence struct {
	*tally
	numbers, tokens peaks
	used            ranges
	reused          []callAt
	byToken         map[fence.Token]*numberSpan
	callers         Callers
	answered        clock.Instant // the last
	// took is what took effect, if the history has it: each answer lies in it.
	took *allocations
	// most is the largest number of numbers in one answer.
	most uint64
}

// numberSpan is the smallest and the largest number of a token.
type numberSpan struct {
	low, high   callAt
	first, last clock.Instant // when callers were answered
	n           int64
}

func newSequence() *sequence {
	return &sequence{
		tally:   newTally("G6", "sequence", "calls answered", "calls failed", "calls of unknown outcome", "numbers", "tokens"),
		byToken: map[fence.Token]*numberSpan{},
	}
}

// call is told every call in the order of their ends. It returns, for those that were
// answered, the call with the largest number among those that had ended before.
func (c *sequence) call(call Call, at Place) (now, before callAt, answered bool) {
	switch {
	case call.What != "" && call.What != "next":
		return
	case call.Unknown:
		c.count("calls of unknown outcome")
		return
	case call.Error != "":
		c.count("calls failed")
		return
	}
	c.count("calls answered")
	if call.First == 0 || call.Last < call.First || call.End < call.Start {
		c.doubt([]Place{at}, "no answer that can be: numbers %d to %d, from %d to %d", call.First, call.Last, call.Start, call.End)
		return
	}
	now = callAt{call.Start, call.End, call.First, call.Last, call.Token, at}
	c.counts["numbers"] += int64(call.Last - call.First + 1)
	c.seen(now)

	if known, sure := c.numbers.before(now.start, &before); known && before.last >= now.first {
		if sure {
			c.violated([]Place{at, before.at}, "number %d was handed out %v after %d had been", now.first, now.start.Sub(before.end), before.last)
		} else {
			c.doubt([]Place{at, before.at}, "number %d was handed out to a call that began too long ago to compare it with all others", now.first)
		}
	}
	var high callAt
	if known, sure := c.tokens.before(now.start, &high); known && high.token > now.token {
		if sure {
			c.violated([]Place{at, high.at}, "token %d answered %v after token %d had", now.token, now.start.Sub(high.end), high.token)
		} else {
			c.doubt([]Place{at, high.at}, "token %d answered a call that began too long ago to compare it with all others", now.token)
		}
	}
	c.numbers.add(now, now.last)
	c.tokens.add(now, uint64(now.token))

	if c.took != nil && c.took.holding(now.token, now.first, now.last) == nil {
		c.violated([]Place{at}, "a caller has %d to %d under token %d, and no effect in the history has that range", now.first, now.last, now.token)
	}
	c.most = max(c.most, now.last-now.first+1)

	if fresh, room := c.used.add(now.first, now.last); !room {
		c.doubt([]Place{at}, "more than %d holes in the numbers", maxRanges)
	} else if !fresh {
		c.v.Violations++
		if len(c.reused) < maxFindings {
			c.reused = append(c.reused, now)
		}
	}
	c.spans(now)
	return now, before, true
}

// seen adds a call to what the callers saw.
func (c *sequence) seen(now callAt) {
	w := &c.callers
	if w.Calls == 0 || now.first < w.First {
		w.First = now.first
	}
	if w.Calls > 0 {
		w.SilenceMS = max(w.SilenceMS, float64(now.end.Sub(c.answered))/float64(time.Millisecond))
	}
	w.Calls++
	w.Numbers += now.last - now.first + 1
	w.Last = max(w.Last, now.last)
	c.answered = now.end
}

func (c *sequence) spans(now callAt) {
	s := c.byToken[now.token]
	if s == nil {
		if c.tooMany(len(c.byToken), maxFacts, now.at) {
			return
		}
		s = &numberSpan{low: now, high: now, first: now.end}
		c.byToken[now.token] = s
		c.callers.Tokens++
	}
	if now.first < s.low.first {
		s.low = now
	}
	if now.last > s.high.last {
		s.high = now
	}
	s.last = now.end
	s.n++
}

// resolve finds the lines on which reused numbers were handed out before.
func (c *sequence) resolve(ctx context.Context, dir string) error {
	if len(c.reused) == 0 {
		return nil
	}
	first := make([]Place, len(c.reused))
	see := func(e Event, at Place) error {
		call := e.(Call)
		if !call.numbers() {
			return nil
		}
		for i, r := range c.reused {
			if first[i].File == "" && at != r.at && call.First <= r.last && r.first <= call.Last {
				first[i] = at
			}
		}
		return nil
	}
	if err := each(ctx, dir, func(kind string) bool { return kind == "call" }, see, func(*historyError) {}); err != nil {
		return err
	}
	for i, r := range c.reused {
		what := fmt.Sprintf("number %d was handed out before", r.first)
		if r.first != r.last {
			what = fmt.Sprintf("of the numbers %d to %d some were handed out before", r.first, r.last)
		}
		c.find(Finding{What: what, At: []Place{r.at, first[i]}})
	}
	return nil
}

func (c *sequence) verdict() Verdict {
	tokens := sorted(c.byToken)
	c.counts["tokens"] = int64(len(tokens))
	// Every number that took effect was answered, or the outcome of its call is unknown.
	if open := uint64(c.counts["calls of unknown outcome"]) * max(c.most, 1); c.took != nil && c.took.sum > c.callers.Numbers+open {
		c.violated(nil, "%d numbers took effect, and callers have %d of them and %d calls of unknown outcome: calls are missing", c.took.sum, c.callers.Numbers, c.counts["calls of unknown outcome"])
	}
	var high *callAt
	for _, token := range tokens {
		s := c.byToken[token]
		if high != nil && high.last >= s.low.first {
			c.violated([]Place{high.at, s.low.at}, "token %d handed out %d, and the later token %d %d", high.token, high.last, token, s.low.first)
		}
		if high == nil || s.high.last > high.last {
			high = &s.high
		}
	}
	return c.tally.verdict()
}

// peaks answers which call had the largest value among those that ended before an
// instant. It keeps the newest maxPeaks rises, and of those before only the last.
type peaks struct {
	rises  []rise
	base   rise
	pruned bool
}

type rise struct {
	call  callAt
	value uint64
}

const maxPeaks = 1 << 19

// add is told calls in the order of their ends.
func (p *peaks) add(c callAt, value uint64) {
	if n := len(p.rises); n > 0 && p.rises[n-1].value >= value {
		return
	}
	if len(p.rises) >= maxPeaks {
		half := len(p.rises) / 2
		p.base, p.pruned = p.rises[half-1], true
		p.rises = append(p.rises[:0], p.rises[half:]...)
	}
	p.rises = append(p.rises, rise{c, value})
}

// before reports whether there was one. If the answer is not sure it is not below the
// right one.
func (p *peaks) before(start clock.Instant, c *callAt) (known, sure bool) {
	i := sort.Search(len(p.rises), func(i int) bool { return p.rises[i].call.end >= start })
	switch {
	case i > 0:
		*c = p.rises[i-1].call
		return true, true
	case p.pruned:
		*c = p.base.call
		return true, p.base.call.end < start
	}
	return false, true
}

// ranges is a set of numbers. Neighbours become one, so that its size is that of the
// holes.
type ranges struct{ all []numbers }

type numbers struct{ first, last uint64 }

const maxRanges = 1 << 20

// add reports whether none of the numbers was there, and whether there was room.
func (r *ranges) add(first, last uint64) (fresh, room bool) {
	// The first range that ends at or after the number before first.
	i := sort.Search(len(r.all), func(i int) bool { return r.all[i].last+1 >= first })
	fresh = true
	j := i
	now := numbers{first, last}
	for ; j < len(r.all) && r.all[j].first <= last+1; j++ {
		if r.all[j].first <= last && first <= r.all[j].last {
			fresh = false
		}
		now.first, now.last = min(now.first, r.all[j].first), max(now.last, r.all[j].last)
	}
	if i == j && len(r.all) >= maxRanges {
		return fresh, false
	}
	switch {
	case i == j:
		r.all = append(r.all, numbers{})
		copy(r.all[i+1:], r.all[i:])
	default:
		r.all = append(r.all[:i+1], r.all[j:]...)
	}
	r.all[i] = now
	return fresh, true
}
