// Package failover measures the phases of a failover as the new leader sees it, and records them
// in the ledger.
package failover

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/wait"
)

// DetectOf30 is the share of PhaseDetect.
const DetectOf30 = 9

// Shares are the parts of the target that each phase has, of 30. The rest is reserve.
var Shares = [...]struct {
	Phase string
	of30  int64
}{{api.PhaseDetect, DetectOf30}, {api.PhaseElect, 1}, {api.PhaseLoad, 2}, {api.PhaseWarm, 10}, {api.PhaseFound, 5}}

// maxFailovers is how many changes of leader are kept.
const maxFailovers = 100

// Ledger is what is read of the ledger: a *client.Client.
type Ledger interface {
	Checkpoint(ctx context.Context, resource, name string) (ledgerapi.Checkpoint, error)
}

// Config is what a Recorder needs.
type Config struct {
	Node, Group string
	// Target is the time that a failover may take. Each phase has a share of it.
	Target time.Duration
	Ledger Ledger
	Writer fencedwriter.Writer
	Host   clock.Clock
	Log    *slog.Logger
	// Ended is called when a phase ends, Gap after a handover in order.
	Ended func(api.Phase)
	Gap   func(time.Duration)
}

// Vacancy is when this node saw the end of a term.
type Vacancy struct {
	Token  fence.Token
	At     clock.Instant
	Reason string
	Holder string
}

// Past is what the ledger holds of earlier leaders.
type Past struct {
	Handover *api.Handover
	// LastWrite is the last write of the leader before. Offset converts the ledger's wall clock
	// into the host's.
	LastWrite int64
	Offset    time.Duration
	Began     clock.Instant // the first attempt to write of this leader
	AtMS      int64
}

// Recorder measures the failover that made this node the leader.
type Recorder struct {
	cfg  Config
	wake chan struct{} // buffered by one

	mu   sync.Mutex
	ends map[string]bool
	what api.Failover
	last clock.Instant // the end of the phase that ended last
}

// New returns the recorder of a term that began at an instant. The vacancy before it may be nil.
func New(cfg Config, token fence.Token, began clock.Instant, before *Vacancy, past Past) *Recorder {
	r := &Recorder{
		cfg: cfg, ends: map[string]bool{}, wake: make(chan struct{}, 1),
		what: api.Failover{Token: token, Node: cfg.Node, AtMS: past.AtMS, TargetUS: cfg.Target.Microseconds(), Cause: "unknown"},
	}
	seen := began
	if before != nil && before.Token+1 == token && before.At < began {
		seen = before.At
		r.what.Cause, r.what.Previous = before.Reason, before.Holder
	}
	if h := past.Handover; h != nil && h.Token+1 == token {
		gap := past.Began.Sub(h.StoppedAt)
		us := gap.Microseconds()
		r.what.Cause, r.what.Previous, r.what.GapUS = h.Reason, h.Node, &us
		cfg.Gap(gap)
	}
	if past.LastWrite == 0 {
		r.what.Cause = "first"
		r.last = seen
	} else {
		r.last = min(seen, clock.Instant(time.Duration(past.LastWrite)*time.Millisecond+past.Offset))
	}
	r.end(api.PhaseDetect, seen)
	r.end(api.PhaseElect, began)
	return r
}

// Reached ends a phase now, if it has not ended.
func (r *Recorder) Reached(phase string) { r.end(phase, r.cfg.Host.Now()) }

func (r *Recorder) end(phase string, at clock.Instant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ends[phase] {
		return
	}
	r.ends[phase] = true
	took := max(0, at.Sub(r.last))
	r.last = max(r.last, at)
	p := api.Phase{Name: phase, TookUS: took.Microseconds()}
	for _, s := range Shares {
		if s.Phase == phase {
			p.ShareUS = r.what.TargetUS * s.of30 / 30
		}
	}
	p.Over = p.TookUS > p.ShareUS
	r.what.Phases = append(r.what.Phases, p)
	r.what.TotalUS += p.TookUS
	r.what.Over = r.what.Over || p.Over || r.what.TotalUS > r.what.TargetUS
	r.cfg.Ended(p)
	if p.Over {
		r.cfg.Log.Warn("a phase of the failover took longer than its share", "group", r.cfg.Group, "token", r.what.Token,
			"phase", phase, "took", took, "share", time.Duration(p.ShareUS)*time.Microsecond, "target", r.cfg.Target)
	}
	wait.Signal(r.wake)
}

// State is the failover so far.
func (r *Recorder) State() api.Failover {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.what
	f.Phases = slices.Clone(f.Phases)
	return f
}

// Run records the failover after the first write, and again after the first answer to a
// client. It waits a moment first: a new leader has more urgent things to write.
func (r *Recorder) Run(ctx context.Context) error {
	const patience, most = 50 * time.Millisecond, 5 * time.Second
	written, pause := 0, patience
	for {
		select {
		case <-r.wake:
		case <-ctx.Done():
			return nil
		}
		if phases := len(r.State().Phases); phases < len(Shares)-1 || phases == written {
			continue
		}
		if !wait.For(ctx, pause) {
			return nil
		}
		f := r.State()
		err := r.write(ctx, f)
		switch {
		case err == nil:
			written, pause = len(f.Phases), patience
		case fencedwriter.Stop(err):
			return err
		default:
			pause = min(2*pause, most)
			r.cfg.Log.Warn("the failover could not be recorded", "group", r.cfg.Group, "token", f.Token, "error", err, "again_in", pause)
			wait.Signal(r.wake)
		}
		if written == len(Shares) {
			r.cfg.Log.Info("failover", "group", r.cfg.Group, "token", f.Token, "cause", f.Cause, "took", time.Duration(f.TotalUS)*time.Microsecond)
			return nil
		}
	}
}

func (r *Recorder) write(ctx context.Context, f api.Failover) error {
	all, err := Read(ctx, r.cfg.Ledger, r.cfg.Group, r.cfg.Log)
	if err != nil {
		return err
	}
	value, err := json.Marshal(api.Failovers{Items: Merge(all, f)})
	if err != nil {
		return err
	}
	_, err = r.cfg.Writer.Write(ctx, ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: api.FailoversCheckpoint, Value: value}})
	return err
}

// Merge appends a failover, or replaces the last one if it is the same.
func Merge(all []api.Failover, f api.Failover) []api.Failover {
	if k := len(all); k > 0 && all[k-1].Token == f.Token {
		all = all[:k-1]
	}
	all = append(all, f)
	return all[max(0, len(all)-maxFailovers):]
}

// Read returns the failovers that the ledger has.
func Read(ctx context.Context, from Ledger, group string, log *slog.Logger) ([]api.Failover, error) {
	c, err := from.Checkpoint(ctx, group, api.FailoversCheckpoint)
	switch {
	case errors.Is(err, ledgerapi.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	var all api.Failovers
	if err := json.Unmarshal(c.Value, &all); err != nil {
		log.Warn("the record of earlier failovers cannot be read", "error", err)
		return nil, nil
	}
	return all.Items, nil
}
