package node

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node/failover"
	"github.com/tenurehq/tenure/reference/node/nodemetrics"
	"github.com/tenurehq/tenure/reference/wait"
)

// view is who leads, as this node has seen it. It routes callers and dates the phases of a
// failover. Nothing is decided by it.
type view struct {
	tenure.Leader
	at clock.Instant // on the host's clock
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
			n.metrics.Health.Set(nodemetrics.Bool(err == nil))
			switch {
			case err != nil:
				n.trace(Event{Kind: api.TraceUnknown, At: now, Token: l.Token, What: l.Candidate.ID})
				n.Config.Log.Debug("cannot see who leads", "error", err)
			case l.State == tenure.Vacant && l.Token > 0:
				n.trace(Event{Kind: api.TraceVacant, At: now, Token: l.Token, What: l.Candidate.ID})
				n.vacancy.Store(&failover.Vacancy{Token: l.Token, At: now, Reason: l.Reason, Holder: l.Candidate.ID})
				n.Config.Log.Info("nobody leads", "group", l.Group, "token", l.Token, "last", l.Candidate.ID, "reason", l.Reason)
			case l.State == tenure.Led:
				n.trace(Event{Kind: api.TraceLed, At: now, Token: l.Token, What: l.Candidate.ID})
				if l.Token <= last {
					continue
				}
				if last > 0 {
					n.metrics.Changes.Inc()
				}
				last = l.Token
				if l.Candidate.ID != n.Config.ID {
					n.leaders.add(l.Candidate.ID, l.Candidate.Address)
				}
				n.Config.Log.Info("new leader", "group", l.Group, "leader", l.Candidate.ID, "token", l.Token)
			}
		}
		wait.For(ctx, 100*time.Millisecond)
	}
}

// Leader is who leads, as far as is known; nil if nobody does.
func (n *Node) Leader() *tenure.Leader {
	if v := n.View(); v != nil && v.State == tenure.Led {
		return v
	}
	return nil
}

// keepWarm reads from the ledger at least once a second. So the connections stay open, and
// this node has nearly everything that a leader needs and knows whether the ledger can be
// used.
func (n *Node) keepWarm(ctx context.Context) {
	every := time.NewTicker(min(time.Second, max(n.Config.SinkPatience/3, 10*time.Millisecond)))
	defer every.Stop()
	for {
		n.refresh(ctx)
		select {
		case <-every.C:
		case <-n.sink.Changed():
		case <-ctx.Done():
			return
		}
	}
}

func (n *Node) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, n.Config.WriteTimeout)
	defer cancel()
	began := n.host.Now()
	probe := n.Ledger.Healthy(ctx)
	r, err := n.Ledger.Resource(ctx, n.Config.Group)
	if probe == nil && r.Deployment != "" {
		// Another fleet may have the same group on the same ledger.
		if d, err := n.Deployment(ctx); err == nil && d != r.Deployment {
			probe = &fence.ForeignError{Stamp: fence.Stamp{Deployment: d, Group: n.Config.Group}, Mark: r.Mark()}
		}
	}
	if errors.Is(probe, ledgerapi.ErrDataLost) {
		n.askLast(ctx)
	}
	if ctx.Err() == nil || !errors.Is(ctx.Err(), context.Canceled) {
		n.sink.Probed(began, probe)
		n.sink.Saw(err)
	}
	if err != nil && !errors.Is(err, ledgerapi.ErrNotFound) {
		n.Config.Log.Debug("the ledger did not answer", "error", err)
		return
	}
	if l := n.leading.Load(); l != nil {
		n.recordTaken(l.Sequencer.Last())
		return
	}
	if _, err := n.readSequence(ctx); err != nil {
		n.Config.Log.Debug("cannot read the sequence", "error", err)
	}
	if err := n.Scheduler.Preload(ctx); err != nil {
		n.Config.Log.Debug("cannot read the jobs ahead", "error", err)
	}
}

// askLast asks the nodes that have led which numbers were taken. The ledger has lost that,
// and this node may have read it up to a second too early.
func (n *Node) askLast(ctx context.Context) {
	for _, address := range n.leaders.all() {
		if s, ok := askStatus(ctx, address); ok && s.Group == n.Config.Group {
			n.recordTaken(s.LastSeq)
		}
	}
}

// Token is the newest that this node knows.
func (n *Node) Token() fence.Token {
	var token fence.Token
	if t := n.term.Load(); t != nil {
		token = t.Token()
	}
	if v := n.view.Load(); v != nil {
		token = max(token, v.Token)
	}
	return token
}

// Failovers are the newest changes of leader, oldest first.
func (n *Node) Failovers(ctx context.Context) ([]api.Failover, error) {
	all, err := failover.Read(ctx, n.Ledger, n.Config.Group, n.Config.Log)
	if l := n.leading.Load(); l != nil {
		all = failover.Merge(all, l.record.State())
	}
	if all == nil {
		all = []api.Failover{}
	}
	return all, err
}

// View is who leads, as this node has seen it last; nil: it has seen nothing yet.
func (n *Node) View() *tenure.Leader {
	if v := n.view.Load(); v != nil {
		return &v.Leader
	}
	return nil
}

// Term is the newest term of this node, until its work has returned; nil: none.
func (n *Node) Term() *tenure.Term {
	if t := n.term.Load(); t != nil {
		return t.Term
	}
	return nil
}

// Leading is the work of this node's term; nil while it takes no calls.
func (n *Node) Leading() *Leading { return n.leading.Load() }

// LastSeq is the highest number that was taken, as far as this node knows.
func (n *Node) LastSeq() uint64 { return n.highest.Load() }

// LedgerOK reports whether the ledger answered the last call and can be used.
func (n *Node) LedgerOK() bool { return n.sink.OK() }

// LongestPause is the longest pause of the process.
func (n *Node) LongestPause() time.Duration { return n.pauses.Longest() }

// Registry has the metrics.
func (n *Node) Registry() *prometheus.Registry { return n.metrics.Registry }
