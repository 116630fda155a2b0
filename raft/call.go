package raft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/raft/internal/wire"
)

// op is what a node asks of another.
type op string

const (
	opLeader   op = "leader"   // of the Raft leader: who leads the group?
	opStand    op = "stand"    // to the Raft leader: I campaign, or no longer do
	opStanding op = "standing" // of a candidate: do you campaign?
	opJoin     op = "join"     // of the Raft leader: add or move a voter
	opRemove   op = "remove"   // of the Raft leader: remove a member
	opRaise    op = "raise"    // of the Raft leader: raise the epoch
	opDied     op = "died"     // of a follower: the process that leads the Raft term has died
)

// request is one question.
type request struct {
	Op      op            `json:"op"`
	Timeout time.Duration `json:"timeout"` // for the answer

	// opLeader: wait until the group differs from this, if it is given.
	State tenure.State  `json:"state,omitzero"`
	Token fence.Token   `json:"token,omitzero"`
	Wait  time.Duration `json:"wait,omitzero"`

	ID          string `json:"id,omitzero"` // who stands, joins or is removed
	Address     string `json:"address,omitzero"`
	Campaigning bool   `json:"campaigning,omitzero"`
	Priority    int    `json:"priority,omitzero"`
	Epoch       uint64 `json:"epoch,omitzero"`

	// opDied: the node ID, its process, and the Raft term that it led. Lead: take over.
	Life string `json:"life,omitzero"`
	Term uint64 `json:"term,omitzero"`
	Lead bool   `json:"lead,omitzero"`
}

// answer is what comes back.
type answer struct {
	Error string `json:"error,omitzero"`
	// Moved: another node is the Raft leader, ID at Address, if that is known.
	Moved   bool   `json:"moved,omitzero"`
	ID      string `json:"id,omitzero"`
	Address string `json:"address,omitzero"`

	Record      record `json:"record,omitzero"` // opLeader
	Led         bool   `json:"led,omitzero"`
	Campaigning bool   `json:"campaigning,omitzero"` // opStanding
	Last        uint64 `json:"last,omitzero"`        // opDied: the last entry of the log
}

const (
	callIdle = time.Minute
	callMost = time.Minute
)

// serveCalls answers the calls on one connection, one after the other.
func (n *Node) serveCalls(conn net.Conn) {
	for {
		_ = conn.SetReadDeadline(time.Now().Add(callIdle))
		var req request
		if err := wire.ReadFrame(conn, &req, wire.MaxCall); err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(n.ctx, min(max(req.Timeout, 0), callMost))
		a := n.answer(ctx, req)
		cancel()
		if err := wire.WriteFrame(conn, a); err != nil {
			return
		}
	}
}

// answer handles a request.
func (n *Node) answer(ctx context.Context, req request) answer {
	var a answer
	var err error
	switch req.Op {
	case opStanding:
		n.mu.Lock()
		a.Campaigning = n.waiter != nil && !n.closing
		n.mu.Unlock()
	case opStand:
		err = n.stood(req)
	case opLeader:
		a.Record, a.Led, err = n.view(ctx, req)
	case opJoin, opRemove:
		err = n.changeMembers(ctx, req)
	case opDied:
		a.Last, err = n.raft.LastIndex(), n.died(ctx, req)
	case opRaise:
		err = n.raise(ctx, req.Epoch)
	default:
		err = fmt.Errorf("%q is not known to this version", req.Op)
	}
	if errors.Is(err, errMoved) {
		addr, id := n.raft.LeaderWithID()
		return answer{Moved: true, ID: string(id), Address: string(addr)}
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// errMoved: another node is the Raft leader, or none is.
var errMoved = errors.New("this node is not the leader of the Raft cluster")

// callError is what a peer answered.
type callError string

func (e callError) Error() string { return string(e) }

// call sends a request to the node at the address. The node may get it twice.
func (n *Node) call(ctx context.Context, id, address string, req request) (a answer, err error) {
	deadline, _ := ctx.Deadline()
	req.Timeout = time.Until(deadline)
	if err := n.callers.Call(ctx, id, address, req, &a); err != nil {
		return a, err
	}
	if a.Error != "" {
		return a, callError(a.Error)
	}
	return a, nil
}
