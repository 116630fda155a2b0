package node

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
)

// view is what this node has seen of the leadership, for routing callers and for
// dating the phases of a failover. It decides nothing.
type view struct {
	tenure.Leader
	at clock.Instant // on the host's clock
}

// vacancy is when the end of a term was seen here.
type vacancy struct {
	token  fence.Token
	at     clock.Instant
	reason string
	holder string
}

// leaders are the addresses of nodes, by id.
type leaders struct {
	mu sync.Mutex
	at map[string]string
}

func (l *leaders) add(id, address string) {
	const most = 64
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil || len(l.at) >= most {
		l.at = make(map[string]string)
	}
	l.at[id] = address
}

func (l *leaders) all() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.at)
}

// observe follows the leadership until ctx ends.
func (n *Node) observe(ctx context.Context) {
	var last fence.Token
	for ctx.Err() == nil {
		for l, err := range n.backend.elector.Leaders(ctx) {
			now := n.host.Now()
			n.view.Store(&view{l, now})
			n.metrics.quorum(err == nil)
			switch {
			case err != nil:
				n.trace(Event{Kind: api.TraceUnknown, At: now, Token: l.Token, What: l.Candidate.ID})
				n.cfg.Log.Debug("the leadership cannot be seen", "error", err)
			case l.State == tenure.Vacant && l.Token > 0:
				n.trace(Event{Kind: api.TraceVacant, At: now, Token: l.Token, What: l.Candidate.ID})
				n.vacancy.Store(&vacancy{l.Token, now, l.Reason, l.Candidate.ID})
				n.cfg.Log.Info("nobody leads", "group", l.Group, "token", l.Token, "last", l.Candidate.ID, "reason", l.Reason)
			case l.State == tenure.Led:
				n.trace(Event{Kind: api.TraceLed, At: now, Token: l.Token, What: l.Candidate.ID})
				if l.Token <= last {
					continue
				}
				if last > 0 {
					n.metrics.changes.Inc()
				}
				last = l.Token
				if l.Candidate.ID != n.cfg.ID {
					n.leaders.add(l.Candidate.ID, l.Candidate.Address)
				}
				n.cfg.Log.Info("led", "group", l.Group, "leader", l.Candidate.ID, "token", l.Token)
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// leader is who leads as far as is known; nil if nobody does.
func (n *Node) leader() *tenure.Leader {
	v := n.view.Load()
	if v == nil || v.State != tenure.Led {
		return nil
	}
	return &v.Leader
}
