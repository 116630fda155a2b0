package ledger

import (
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// actors records who wrote to one resource, for leaders_acting. It depends only on accepted
// writes.
type actors struct {
	last map[fence.Token]act
}

// act is the latest accepted write of one token.
type act struct {
	at clock.Instant
	// after is when a higher token was last accepted before it.
	after clock.Instant
	stale bool // there was one
}

// maxActors is how many tokens are kept. Only with fencing off can there be many within a
// window.
const maxActors = 64

// accept records a write. Writes must be recorded in the order in which they took effect.
func (a *actors) accept(token fence.Token, at clock.Instant, window time.Duration) {
	if a.last == nil {
		a.last = make(map[fence.Token]act)
	}
	now := act{at: at}
	for other, o := range a.last {
		if o.at.Add(window) <= at {
			delete(a.last, other)
			continue
		}
		if other > token && (!now.stale || o.at > now.after) {
			now.after, now.stale = o.at, true
		}
	}
	if _, known := a.last[token]; known || len(a.last) < maxActors {
		a.last[token] = now
	}
}

// acting is how many leaders act now: none if no write was accepted within the window; one while
// writes come in the order of their tokens; and one more for each token with a write accepted
// after one of a higher token, both within the window.
func (a *actors) acting(now clock.Instant, window time.Duration) int {
	n, stale := 0, 0
	for _, e := range a.last {
		if e.at.Add(window) <= now {
			continue
		}
		n = 1
		if e.stale && e.after.Add(window) > now {
			stale++
		}
	}
	return n + stale
}
