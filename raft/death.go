package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	hraft "github.com/hashicorp/raft"

	"github.com/tenurehq/tenure/raft/internal/wire"
	"github.com/tenurehq/tenure/store"
)

// Keeper gets the Raft terms that this process leads, and tells the other members when the process
// has died: a pulse.Client, whose keeper has the store of Notices. Its methods must not block.
type Keeper interface {
	Keep(term store.Session, instance string)
	Forget(instance string)
}

// death is what a keeper gets as the id of a session: which process leads which Raft term.
type death struct {
	node, life string
	term       uint64
}

func (d death) id() store.SessionID {
	return store.SessionID(fmt.Sprintf("%s/%s/%d", d.node, d.life, d.term))
}

func deathOf(id store.SessionID) (d death, err error) {
	parts := strings.Split(string(id), "/")
	if len(parts) != 3 {
		return d, fmt.Errorf("raft: %q is no Raft term", id)
	}
	d.node, d.life = parts[0], parts[1]
	d.term, err = strconv.ParseUint(parts[2], 10, 64)
	return d, err
}

// register tells the keeper which Raft term this process leads, if any.
func (n *Node) register(now leadership) {
	switch {
	case n.cfg.Keeper == nil:
	case now.leading:
		d := death{n.cfg.Candidate.ID, n.fsm.life, now.term}
		n.cfg.Keeper.Keep(store.Session{ID: d.id(), Deployment: n.cfg.Group}, n.secret)
	default:
		n.cfg.Keeper.Forget(n.secret)
	}
}

// died handles the notice that the process which leads a Raft term has died. If the notice asks
// for it, this node then takes over, as after a transfer. A notice about another node, another
// process of the node, or another term (see transport.inspect) is refused without an effect.
func (n *Node) died(ctx context.Context, req request) error {
	_, leader := n.raft.LeaderWithID()
	switch {
	case leader == "" || req.ID != string(leader) || req.ID == n.cfg.Candidate.ID:
		return fmt.Errorf("notice refused: this node follows %q, not %q", leader, req.ID)
	case req.Life != n.port.Life(req.ID):
		return fmt.Errorf("notice refused: it is about another process of %q", req.ID)
	case !req.Lead:
		return nil
	}
	n.cfg.Log.Info("raft: the leader's process has died", "leader", req.ID, "raft_term", req.Term)
	return n.trans.takeOver(ctx, req.Term)
}

// Notices is the store of a keeper of package pulse that watches over nodes of this cluster. It
// has no sessions: to end one is to tell the other members that the leader of a Raft term has
// died. Then the one with the longest log takes over at once, and not after a Heartbeat. The
// store has only the methods that a keeper calls, Session and End.
//
// The configuration is that of the node. Candidate.ID, Group, Peers, TLS, Dial, Timing and Log are
// used. Members that joined later, and are not among Peers, get no notice.
func Notices(cfg Config) (store.Store, error) {
	cfg = cfg.resolve()
	port, err := wire.Dialer(wire.Config{ID: cfg.Candidate.ID, Group: cfg.Group, TLS: cfg.TLS, Dial: cfg.Dial, Heartbeat: cfg.Heartbeat})
	if err != nil {
		return nil, fmt.Errorf("raft: %w: %w", ErrConfig, err)
	}
	return &notices{cfg: cfg, callers: wire.NewCallers(port)}, nil
}

type notices struct {
	store.Store // nil
	cfg         Config
	callers     *wire.Callers
}

// Session implements store.Store. The life in the id is the digest of the instance, which only
// the process itself knows, so that no other process can register its term.
func (s *notices) Session(_ context.Context, id store.SessionID) (store.Session, error) {
	d, err := deathOf(id)
	if err == nil && d.node != s.cfg.Candidate.ID {
		err = fmt.Errorf("raft: this keeper is for %q, not %q", s.cfg.Candidate.ID, d.node)
	}
	// After a Heartbeat the followers elect anyway.
	return store.Session{ID: id, Deployment: s.cfg.Group, Instance: d.life, Candidate: s.cfg.Candidate, TTL: s.cfg.Heartbeat}, err
}

// End implements store.Store. It asks every peer about its log, and then the best to take over. An
// error means that no peer has.
func (s *notices) End(ctx context.Context, id store.SessionID, _ store.Reason, _ ...store.Record) error {
	d, err := deathOf(id)
	if err != nil {
		return err
	}
	notice := request{Op: opDied, ID: d.node, Life: d.life, Term: d.term}
	type reply struct {
		peer string
		answer
		err error
	}
	var mu sync.Mutex
	var all []reply
	var wait sync.WaitGroup
	for id := range s.cfg.Peers {
		if id != d.node {
			wait.Go(func() {
				a, err := s.call(ctx, id, notice)
				mu.Lock()
				defer mu.Unlock()
				all = append(all, reply{id, a, err})
			})
		}
	}
	wait.Wait()
	slices.SortFunc(all, func(a, b reply) int {
		return cmp.Or(cmp.Compare(b.Last, a.Last), strings.Compare(a.peer, b.peer))
	})
	notice.Lead = true
	for _, r := range all {
		if r.err == nil {
			_, r.err = s.call(ctx, r.peer, notice)
		}
		if r.err == nil {
			return nil
		}
		err = errors.Join(err, r.err)
	}
	return fmt.Errorf("raft: no member of group %q takes over Raft term %d of %s: %w", s.cfg.Group, d.term, d.node, err)
}

func (s *notices) call(ctx context.Context, peer string, req request) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Heartbeat)
	defer cancel()
	req.Timeout = s.cfg.Heartbeat
	if err := s.callers.Call(ctx, peer, s.cfg.Peers[peer], req, &a); err != nil {
		return a, err
	}
	if a.Error != "" {
		return a, callError(a.Error)
	}
	return a, nil
}

// takeOver makes this node, a follower, elect at once as if the leader of the Raft term had handed
// over to it.
func (t *transport) takeOver(ctx context.Context, term uint64) error {
	header := t.self
	header.Addr = []byte(handedPrefix + strconv.FormatUint(term, 10))
	done := make(chan hraft.RPCResponse, 1)
	select {
	case t.notices <- hraft.RPC{Command: &hraft.TimeoutNowRequest{RPCHeader: header}, RespChan: done}:
	case <-t.stop:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case r := <-done:
		return r.Error
	case <-t.stop:
		return ErrClosed
	}
}
