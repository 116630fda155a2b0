package node

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/compactor"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/wait"
)

// Compaction is the long task of the leader. It continues what the leader before has not
// finished, and begins a new one when somebody asks.
type Compaction struct {
	n      *Node
	writer *fencedwriter.TermWriter
	asked  chan compactionWork              // buffered by one
	at     atomic.Pointer[compactor.Cursor] // nil: nothing is done here
	busy   atomic.Bool                      // from the start of a task to its end
}

type compactionWork struct {
	from compactor.Cursor
	rate int64
}

// pace is kept beside the cursor, so that the next leader continues at the same rate.
type pace struct {
	Rate int64 `json:"rate"`
}

func (n *Node) newCompaction(w *fencedwriter.TermWriter) *Compaction {
	c := &Compaction{n: n, writer: w, asked: make(chan compactionWork, 1)}
	c.busy.Store(true)
	return c
}

// run works until ctx ends or another leads.
func (c *Compaction) run(ctx context.Context) error {
	left, err := c.left(ctx)
	for pause := 100 * time.Millisecond; err != nil; pause = min(2*pause, 5*time.Second) {
		c.n.Config.Log.Warn("cannot read the unfinished compaction, trying again", "error", err, "again_in", pause)
		if !wait.For(ctx, pause) {
			return nil
		}
		left, err = c.left(ctx)
	}
	for {
		if left != nil {
			if err := c.work(ctx, *left); err != nil {
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

func (c *Compaction) work(ctx context.Context, w compactionWork) error {
	c.at.Store(&w.from)
	defer c.at.Store(nil)
	report, err := compactor.Run(ctx, c.writer, w.from, compactor.Config{
		Rate: w.rate, Last: c.writer.WriteLast, Clock: c.n.clock, Log: c.n.Config.Log,
		Progress: func(now compactor.Cursor) { c.at.Store(&now) },
	})
	c.n.Config.Log.Info("compaction", "group", c.n.Config.Group, "finished", report.Cursor.Finished(), "segments", report.Segments, "bytes", report.Bytes,
		"redone_segments", report.RedoneSegments, "redone_bytes", report.RedoneBytes, "error", err)
	if fencedwriter.Stop(err) {
		return err
	}
	return nil
}

// left is what the leader before has not finished; nil: nothing.
func (c *Compaction) left(ctx context.Context) (*compactionWork, error) {
	found, err := c.n.Ledger.Checkpoint(ctx, c.n.Config.Group, compactor.Checkpoint)
	if errors.Is(err, ledgerapi.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	from, err := compactor.Parse(found.Value)
	if err != nil || from.Finished() {
		return nil, err
	}
	var p pace
	found, err = c.n.Ledger.Checkpoint(ctx, c.n.Config.Group, api.CompactionPace)
	if err == nil {
		err = json.Unmarshal(found.Value, &p)
	}
	return &compactionWork{from: from, rate: p.Rate}, err
}

// ErrCompacting: a compaction is under way.
var ErrCompacting = errors.New("fleet: a compaction is under way")

// Start records a new task and begins it, at a rate in bytes a second. It returns ErrCompacting
// while another is under way.
func (c *Compaction) Start(ctx context.Context, from compactor.Cursor, rate int64) (cursor json.RawMessage, err error) {
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
		ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: compactor.Checkpoint, Value: cursor}},
		ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: api.CompactionPace, Value: value}})
	if err != nil {
		c.busy.Store(false)
		return nil, err
	}
	c.asked <- compactionWork{from, rate} // there is room: busy admits one at a time
	return cursor, nil
}

// Now is the position of the task that is done here; nil: none is.
func (c *Compaction) Now() *compactor.Cursor { return c.at.Load() }
