package compactor

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/wait"
)

// Ledger is what a Service reads of a ledger: a *client.Client.
type Ledger interface {
	Checkpoint(ctx context.Context, resource, name string) (ledgerapi.Checkpoint, error)
}

// Service compacts for one leader. It continues what the leader before has not finished, and
// begins a new task when somebody asks.
type Service struct {
	ledger Ledger
	group  string
	writer *fencedwriter.TermWriter
	clock  clock.Clock
	log    *slog.Logger

	asked chan work              // buffered by one
	at    atomic.Pointer[Cursor] // nil: no task runs here
	busy  atomic.Bool            // from the start of a task to its end
}

type work struct {
	from Cursor
	rate int64
}

// paceCheckpoint is the name of the checkpoint with the pace.
const paceCheckpoint = "compaction-pace"

// pace is kept beside the cursor, so that the next leader continues at the same rate.
type pace struct {
	Rate int64 `json:"rate"`
}

// NewService returns the service of a leader of the group.
func NewService(ledger Ledger, group string, w *fencedwriter.TermWriter, c clock.Clock, log *slog.Logger) *Service {
	s := &Service{ledger: ledger, group: group, writer: w, clock: c, log: log, asked: make(chan work, 1)}
	s.busy.Store(true)
	return s
}

// Run works until ctx ends or another leads.
func (c *Service) Run(ctx context.Context) error {
	left, err := c.left(ctx)
	for pause := 100 * time.Millisecond; err != nil; pause = min(2*pause, 5*time.Second) {
		c.log.Warn("cannot read the unfinished compaction, trying again", "error", err, "again_in", pause)
		if !wait.For(ctx, pause) {
			return nil
		}
		left, err = c.left(ctx)
	}
	for {
		if left != nil {
			if err := c.compact(ctx, *left); err != nil {
				return err
			}
		}
		c.busy.Store(false)
		select {
		case w := <-c.asked:
			left = &w
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *Service) compact(ctx context.Context, w work) error {
	c.at.Store(&w.from)
	defer c.at.Store(nil)
	report, err := Run(ctx, c.writer, w.from, Config{
		Rate: w.rate, Last: c.writer.WriteLast, Clock: c.clock, Log: c.log,
		Progress: func(now Cursor) { c.at.Store(&now) },
	})
	c.log.Info("compaction", "group", c.group, "finished", report.Cursor.Finished(), "segments", report.Segments, "bytes", report.Bytes,
		"redone_segments", report.RedoneSegments, "redone_bytes", report.RedoneBytes, "error", err)
	if fencedwriter.Stop(err) {
		return err
	}
	return nil
}

// left is what the leader before has not finished; nil: nothing.
func (c *Service) left(ctx context.Context) (*work, error) {
	found, err := c.ledger.Checkpoint(ctx, c.group, Checkpoint)
	if errors.Is(err, ledgerapi.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	from, err := Parse(found.Value)
	if err != nil || from.Finished() {
		return nil, err
	}
	var p pace
	found, err = c.ledger.Checkpoint(ctx, c.group, paceCheckpoint)
	if err == nil {
		err = json.Unmarshal(found.Value, &p)
	}
	return &work{from: from, rate: p.Rate}, err
}

// ErrCompacting: a compaction is under way.
var ErrCompacting = errors.New("fleet: a compaction is under way")

// Start records a new task and begins it, at a rate in bytes a second. It returns ErrCompacting
// while another is under way.
func (c *Service) Start(ctx context.Context, from Cursor, rate int64) (cursor json.RawMessage, err error) {
	if cursor, err = json.Marshal(from); err != nil {
		return nil, err
	}
	value, err := json.Marshal(pace{rate})
	if err != nil {
		return nil, err
	}
	if !c.busy.CompareAndSwap(false, true) {
		return nil, ErrCompacting
	}
	_, err = c.writer.Write(ctx,
		ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: Checkpoint, Value: cursor}},
		ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: paceCheckpoint, Value: value}})
	if err != nil {
		c.busy.Store(false)
		return nil, err
	}
	c.asked <- work{from, rate} // there is room: busy admits one at a time
	return cursor, nil
}

// Now is the position of the task that is done here; nil: none is.
func (c *Service) Now() *Cursor { return c.at.Load() }
