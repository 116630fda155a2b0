package labnode

import (
	"sync"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/labapi"
)

// attempts keeps the newest attempts to write. Experiments compare them with those of other
// nodes on one clock.
type attempts struct {
	mu    sync.Mutex
	ring  []labapi.Attempt
	count uint64
}

const maxAttempts = 16384

func newAttempts() *attempts { return &attempts{ring: make([]labapi.Attempt, maxAttempts)} }

func (a *attempts) add(at clock.Instant, token fence.Token) {
	a.mu.Lock()
	a.ring[a.count%maxAttempts] = labapi.Attempt{At: at, Token: token}
	a.count++
	a.mu.Unlock()
}

func (a *attempts) list(node string) labapi.Attempts {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := a.count - min(a.count, maxAttempts)
	out := labapi.Attempts{NodeID: node, Dropped: first, Items: make([]labapi.Attempt, 0, a.count-first)}
	for i := first; i < a.count; i++ {
		out.Items = append(out.Items, a.ring[i%maxAttempts])
	}
	return out
}
