package node

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/wait"
)

// view is who leads, as this node has seen it. It routes callers and dates the phases of a
// failover. Nothing is decided by it.
type view struct {
	tenure.Leader
	at clock.Instant // on the host's clock
}

// vacancy is when this node saw the end of a term.
type vacancy struct {
	token  fence.Token
	at     clock.Instant
	reason string
	holder string
}

// leaders are the addresses of nodes that have led, by id.
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
			n.metrics.health.Set(boolean(err == nil))
			switch {
			case err != nil:
				n.trace(Event{Kind: api.TraceUnknown, At: now, Token: l.Token, What: l.Candidate.ID})
				n.cfg.Log.Debug("cannot see who leads", "error", err)
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
				n.cfg.Log.Info("new leader", "group", l.Group, "leader", l.Candidate.ID, "token", l.Token)
			}
		}
		wait.For(ctx, 100*time.Millisecond)
	}
}

// leader is who leads, as far as is known; nil if nobody does.
func (n *Node) leader() *tenure.Leader {
	v := n.view.Load()
	if v == nil || v.State != tenure.Led {
		return nil
	}
	return &v.Leader
}

// keepWarm reads from the ledger once a second or more often. So the connections stay open,
// this node has nearly everything that a leader needs, and knows whether the ledger can be
// used.
func (n *Node) keepWarm(ctx context.Context) {
	every := time.NewTicker(min(time.Second, max(n.cfg.SinkPatience/3, 10*time.Millisecond)))
	defer every.Stop()
	for {
		n.refresh(ctx)
		select {
		case <-every.C:
		case <-n.sink.turned():
		case <-ctx.Done():
			return
		}
	}
}

func (n *Node) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.WriteTimeout)
	defer cancel()
	began := n.host.Now()
	probe := n.ledger.Healthy(ctx)
	r, err := n.ledger.Resource(ctx, n.cfg.Group)
	if probe == nil && r.Deployment != "" {
		// Another fleet may have the same group on the same ledger.
		if d, err := n.deployment(ctx); err == nil && d != r.Deployment {
			probe = &fence.ForeignError{Stamp: fence.Stamp{Deployment: d, Group: n.cfg.Group}, Mark: r.Mark()}
		}
	}
	if errors.Is(probe, ledgerapi.ErrDataLost) {
		n.askLast(ctx)
	}
	if ctx.Err() == nil || !errors.Is(ctx.Err(), context.Canceled) {
		n.sink.probed(began, probe)
		n.sink.saw(err)
	}
	if err != nil && !errors.Is(err, ledgerapi.ErrNotFound) {
		n.cfg.Log.Debug("the ledger did not answer", "error", err)
		return
	}
	if l := n.leading.Load(); l != nil {
		n.know(l.seq.Last())
		return
	}
	if _, err := n.readSequence(ctx); err != nil {
		n.cfg.Log.Debug("cannot read the sequence", "error", err)
	}
	if err := n.scheduler.Preload(ctx); err != nil {
		n.cfg.Log.Debug("cannot read the jobs ahead", "error", err)
	}
}

// askLast asks the nodes that have led which numbers were taken. The ledger has lost that,
// and this node may have read it a second too early.
func (n *Node) askLast(ctx context.Context) {
	for _, address := range n.leaders.all() {
		if s, ok := askStatus(ctx, address); ok && s.Group == n.cfg.Group {
			n.know(s.LastSeq)
		}
	}
}

// token is the newest that this node knows.
func (n *Node) token() fence.Token {
	var token fence.Token
	if t := n.term.Load(); t != nil {
		token = t.Token()
	}
	if v := n.view.Load(); v != nil {
		token = max(token, v.Token)
	}
	return token
}
