package node

import (
	"context"
	"errors"
	"time"

	"github.com/tenurehq/tenure/fence"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// warm is what a node keeps ready, read once a second.
type warm struct {
	jobs uint64
	tick uint64
	seq  uint64
}

const warmEvery = time.Second

// keepWarm asks the ledger on and on: its connections stay open, what a leader would
// need is nearly up to date, and whether it can be used is known.
func (n *Node) keepWarm(ctx context.Context) {
	every := time.NewTicker(min(warmEvery, max(n.cfg.SinkPatience/3, 10*time.Millisecond)))
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
	w := &warm{jobs: r.Jobs, tick: r.LastTick}
	defer func() { n.warm.Store(w) }()
	if l := n.leading.Load(); l != nil {
		w.seq = l.seq.Last()
		n.know(w.seq)
		return
	}
	if w.seq, err = n.readSequence(ctx); err != nil {
		n.cfg.Log.Debug("the sequence cannot be read", "error", err)
	}
	if err := n.scheduler.Preload(ctx); err != nil {
		n.cfg.Log.Debug("the jobs ahead cannot be read", "error", err)
	}
}

// askLast asks the nodes that have led which numbers they know of. The ledger has lost
// that, and this node may have looked a second before.
func (n *Node) askLast(ctx context.Context) {
	for _, address := range n.leaders.all() {
		if s, ok := askStatus(ctx, address); ok && s.Group == n.cfg.Group {
			n.know(s.LastSeq)
		}
	}
}

// token is the newest that this node knows of.
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
