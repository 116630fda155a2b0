package experiment

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
	"github.com/tenurehq/tenure/app/fleet/api"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// sealTime bounds the wait for a successor's seal: other faults may stand meanwhile.
const sealTime = 20 * time.Second

// set sets the fault of a blow and returns when it is over.
func (w *weather) set(ctx context.Context, b blow) (chaos.Fault, error) {
	switch b.Kind {
	case "kill-leader":
		return w.chaos.KillLeader(ctx)
	case "stop-leader":
		return w.chaos.StopLeader(ctx)
	case "resign-leader":
		return w.chaos.ResignLeader(ctx)
	case "transfer-leader":
		return w.transfer(ctx, b)
	case "pause-leader-short", "pause-leader-long":
		return w.chaos.PauseLeader(ctx, chaos.Pause{For: b.For})
	case "pause-between":
		return w.chaos.PauseLeader(ctx, chaos.Pause{For: b.For, Between: true, Until: func(ctx context.Context, at chaos.Leader) error {
			_, err := w.overtaken(ctx, at.Token)
			return err
		}})
	case "clock-offset", "clock-rate":
		return w.chaos.SkewLeader(ctx, chaos.Skew{Offset: b.Offset, PPM: b.PPM, For: b.For})
	case "flap":
		return w.chaos.FlapLeader(ctx, chaos.Flap{From: w.elects(), For: b.For, Seed: b.Seed})
	case "cut-ledger":
		return w.chaos.PartitionLeader(ctx, chaos.Partition{From: chaos.Ledger, Way: b.Way, For: b.For})
	case "kill-ledger":
		return w.chaos.Kill(ctx, "ledger")
	case "pause-ledger":
		return w.chaos.Pause(ctx, chaos.Pause{For: b.For}, "ledger")
	case "kill-member":
		return w.chaos.Kill(ctx, w.member(b.Nth))
	case "pause-member":
		return w.chaos.Pause(ctx, chaos.Pause{For: b.For}, w.member(b.Nth))
	case "quorum-lost":
		return w.quorumLost(ctx, b)
	case "kill-follower", "pause-follower":
		all, err := w.followers(ctx)
		if err != nil {
			return chaos.Fault{}, err
		}
		id := all[b.Nth%len(all)].NodeID
		if b.Kind == "kill-follower" {
			return w.chaos.Kill(ctx, id)
		}
		return w.chaos.Pause(ctx, chaos.Pause{For: b.For}, id)
	}
	if strings.HasPrefix(b.Kind, "cut-") {
		return w.chaos.PartitionLeader(ctx, chaos.Partition{From: w.elects(), Way: b.Way, For: b.For})
	}
	return w.moment(ctx, b)
}

// elects is what a leader must reach to go on leading.
func (w *weather) elects() chaos.From {
	if w.trial.Engine == raftEngine {
		return chaos.Peers
	}
	return chaos.Engine
}

func (w *weather) member(nth int) string { return w.file.Engines[nth%len(w.file.Engines)].ID }

// followers are the nodes that answer and do not lead, in the order of the fleet file.
func (w *weather) followers(ctx context.Context) ([]api.Status, error) {
	var all []api.Status
	for _, n := range w.file.Nodes {
		if s, ok := w.status(ctx, n.URL); ok && s.Role != api.Leader {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: no follower answers", chaos.ErrCannot)
	}
	return all, nil
}

// quorumLost stops so many that those who elect have no majority: two of three members
// of the engine, or with Raft those who follow.
func (w *weather) quorumLost(ctx context.Context, b blow) (chaos.Fault, error) {
	if err := w.all(ctx); err != nil {
		return chaos.Fault{}, err
	}
	var ids []string
	for i, e := range w.file.Engines {
		if i != b.Nth%len(w.file.Engines) {
			ids = append(ids, e.ID)
		}
	}
	if w.trial.Engine == raftEngine {
		all, err := w.followers(ctx)
		if err != nil {
			return chaos.Fault{}, err
		}
		for _, s := range all {
			ids = append(ids, s.NodeID)
		}
		if len(ids) != len(w.file.Nodes)-1 {
			return chaos.Fault{}, fmt.Errorf("%w: of %d nodes %d follow", chaos.ErrChanged, len(w.file.Nodes), len(ids))
		}
	}
	return w.chaos.Pause(ctx, chaos.Pause{For: b.For}, ids...)
}

// transfer asks the leader to hand over to a follower.
func (w *weather) transfer(ctx context.Context, b blow) (f chaos.Fault, err error) {
	l, err := w.chaos.Leader(ctx, 0)
	if err != nil {
		return f, err
	}
	f = chaos.Fault{Target: l.ID, Token: l.Token}
	all, err := w.followers(ctx)
	if err != nil {
		return f, err
	}
	to := all[b.Nth%len(all)].NodeID
	const bound = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	// The client may remember another node: it is to look again first.
	if _, err := w.nodes.Leader(ctx); err != nil {
		return f, fmt.Errorf("%w: %w", chaos.ErrChanged, err)
	}
	f.Begun = now()
	_, err = w.nodes.Transfer(ctx, to, l.Token)
	f.Healed = now()
	if err != nil {
		return f, fmt.Errorf("%w: %s does not hand over to %s: %w", chaos.ErrNoBite, l.ID, to, err)
	}
	f.Shown = chaos.Ended
	f.Evidence = fmt.Sprintf("%s says that its term with token %d is over, for %s", l.ID, l.Token, to)
	return f, nil
}

// overtaken waits until the ledger takes nothing that is not above a token.
func (w *weather) overtaken(ctx context.Context, token fence.Token) (mark fence.Token, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, sealTime, fmt.Errorf("%w within %v: a seal above token %d", ErrNotSeen, sealTime, token))
	defer cancel()
	err = await(ctx, "a seal", func(ctx context.Context) bool {
		r, err := w.ledger.Resource(ctx, group)
		mark = r.Token
		return err == nil && mark > token
	})
	return mark, err
}

// until lets time pass up to an instant.
func (w *weather) until(ctx context.Context, at clock.Instant) {
	_ = w.hold(ctx, at.Sub(now())) // whoever waits looks at ctx
}
