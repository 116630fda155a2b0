package node

import (
	"sync"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
)

// attempts keeps the newest attempts to write, for experiments that compare them with
// those of other nodes on one clock.
type attempts struct {
	mu    sync.Mutex
	ring  []api.Attempt
	count uint64
}

const maxAttempts = 16384

func newAttempts() *attempts { return &attempts{ring: make([]api.Attempt, maxAttempts)} }

func (a *attempts) add(at clock.Instant, token fence.Token) {
	a.mu.Lock()
	a.ring[a.count%maxAttempts] = api.Attempt{At: at, Token: token}
	a.count++
	a.mu.Unlock()
}

func (a *attempts) list(node string) api.Attempts {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := a.count - min(a.count, maxAttempts)
	out := api.Attempts{NodeID: node, Dropped: first, Items: make([]api.Attempt, 0, a.count-first)}
	for i := first; i < a.count; i++ {
		out.Items = append(out.Items, a.ring[i%maxAttempts])
	}
	return out
}
