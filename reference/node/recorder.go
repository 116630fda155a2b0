package node

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/wait"
)

const detectOf30 = 9

// shares are the parts of the target that each phase has, of 30. The rest is reserve.
var shares = [...]struct {
	phase string
	of30  int64
}{{api.PhaseDetect, detectOf30}, {api.PhaseElect, 1}, {api.PhaseLoad, 2}, {api.PhaseWarm, 10}, {api.PhaseFound, 5}}

// maxFailovers is how many changes of leader are kept.
const maxFailovers = 100

// recorder measures the phases of the failover that made this node the leader, and records
// them.
type recorder struct {
	n      *Node
	writer *fencedwriter.TermWriter
	wake   chan struct{} // buffered by one

	mu   sync.Mutex
	ends map[string]bool
	what api.Failover
	last clock.Instant // the end of the phase that ended last
}

func (n *Node) newRecorder(b *begun, w *fencedwriter.TermWriter, past past) *recorder {
	r := &recorder{
		n: n, writer: w, ends: map[string]bool{}, wake: make(chan struct{}, 1),
		what: api.Failover{Token: b.Token(), Node: n.Config.ID, AtMS: past.atMS, TargetUS: n.Config.RTO.Microseconds(), Cause: "unknown"},
	}
	seen := b.at
	if v := n.vacancy.Load(); v != nil && v.token+1 == b.Token() && v.at < b.at {
		seen = v.at
		r.what.Cause, r.what.Previous = v.reason, v.holder
	}
	if h := past.handover; h != nil && h.Token+1 == b.Token() {
		gap := past.began.Sub(h.StoppedAt).Microseconds()
		r.what.Cause, r.what.Previous, r.what.GapUS = h.Reason, h.Node, &gap
		n.metrics.gap(past.began.Sub(h.StoppedAt))
	}
	if past.lastWrite == 0 {
		r.what.Cause = "first"
		r.last = seen
	} else {
		r.last = min(seen, clock.Instant(time.Duration(past.lastWrite)*time.Millisecond+past.offset))
	}
	r.end(api.PhaseDetect, seen)
	r.end(api.PhaseElect, b.at)
	return r
}

// reached ends a phase now, if it has not ended.
func (r *recorder) reached(phase string) { r.end(phase, r.n.host.Now()) }

func (r *recorder) end(phase string, at clock.Instant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ends[phase] {
		return
	}
	r.ends[phase] = true
	took := max(0, at.Sub(r.last))
	r.last = max(r.last, at)
	p := api.Phase{Name: phase, TookUS: took.Microseconds()}
	for _, s := range shares {
		if s.phase == phase {
			p.ShareUS = r.what.TargetUS * s.of30 / 30
		}
	}
	p.Over = p.TookUS > p.ShareUS
	r.what.Phases = append(r.what.Phases, p)
	r.what.TotalUS += p.TookUS
	r.what.Over = r.what.Over || p.Over || r.what.TotalUS > r.what.TargetUS
	r.n.metrics.phase(p)
	if p.Over {
		r.n.Config.Log.Warn("a phase of the failover took longer than its share", "group", r.n.Config.Group, "token", r.what.Token,
			"phase", phase, "took", took, "share", time.Duration(p.ShareUS)*time.Microsecond, "target", r.n.Config.RTO)
	}
	wait.Signal(r.wake)
}

func (r *recorder) state() (f api.Failover, phases int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f = r.what
	f.Phases = slices.Clone(f.Phases)
	return f, len(f.Phases)
}

// run records the failover after the first write, and again after the first answer to a
// client. It waits a moment first: a new leader has more urgent things to write.
func (r *recorder) run(ctx context.Context) error {
	const patience, most = 50 * time.Millisecond, 5 * time.Second
	written, pause := 0, patience
	for {
		select {
		case <-r.wake:
		case <-ctx.Done():
			return nil
		}
		f, phases := r.state()
		if phases < len(shares)-1 || phases == written {
			continue
		}
		if !wait.For(ctx, pause) {
			return nil
		}
		f, phases = r.state()
		err := r.write(ctx, f)
		switch {
		case err == nil:
			written, pause = phases, patience
		case fencedwriter.Stop(err):
			return err
		default:
			pause = min(2*pause, most)
			r.n.Config.Log.Warn("the failover could not be recorded", "group", r.n.Config.Group, "token", f.Token, "error", err, "again_in", pause)
			wait.Signal(r.wake)
		}
		if written == len(shares) {
			r.n.Config.Log.Info("failover", "group", r.n.Config.Group, "token", f.Token, "cause", f.Cause, "took", time.Duration(f.TotalUS)*time.Microsecond)
			return nil
		}
	}
}

func (r *recorder) write(ctx context.Context, f api.Failover) error {
	all, err := r.n.recorded(ctx)
	if err != nil {
		return err
	}
	value, err := json.Marshal(api.Failovers{Items: merge(all, f)})
	if err != nil {
		return err
	}
	_, err = r.writer.Write(ctx, ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: api.FailoversCheckpoint, Value: value}})
	return err
}

// merge appends a failover, or replaces the last one if it is the same.
func merge(all []api.Failover, f api.Failover) []api.Failover {
	if k := len(all); k > 0 && all[k-1].Token == f.Token {
		all = all[:k-1]
	}
	all = append(all, f)
	return all[max(0, len(all)-maxFailovers):]
}

// Failovers are the newest changes of leader, oldest first.
func (n *Node) Failovers(ctx context.Context) ([]api.Failover, error) {
	all, err := n.recorded(ctx)
	if l := n.leading.Load(); l != nil {
		f, _ := l.record.state()
		all = merge(all, f)
	}
	if all == nil {
		all = []api.Failover{}
	}
	return all, err
}

// recorded are the failovers that the ledger has.
func (n *Node) recorded(ctx context.Context) ([]api.Failover, error) {
	c, err := n.Ledger.Checkpoint(ctx, n.Config.Group, api.FailoversCheckpoint)
	switch {
	case errors.Is(err, ledgerapi.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	var all api.Failovers
	if err := json.Unmarshal(c.Value, &all); err != nil {
		n.Config.Log.Warn("the record of earlier failovers cannot be read", "error", err)
		return nil, nil
	}
	return all.Items, nil
}
