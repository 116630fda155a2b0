package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/compactor"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/wait"
	"github.com/tenurehq/tenure/server/httpapi"
)

// compaction is the long task of the leader. It continues what the leader before has not
// finished, and begins a new one when somebody asks.
type compaction struct {
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

func (n *Node) newCompaction(w *fencedwriter.TermWriter) *compaction {
	c := &compaction{n: n, writer: w, asked: make(chan compactionWork, 1)}
	c.busy.Store(true)
	return c
}

// run works until ctx ends or another leads.
func (c *compaction) run(ctx context.Context) error {
	left, err := c.left(ctx)
	for pause := 100 * time.Millisecond; err != nil; pause = min(2*pause, 5*time.Second) {
		c.n.cfg.Log.Warn("cannot read the unfinished compaction, trying again", "error", err, "again_in", pause)
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

func (c *compaction) work(ctx context.Context, w compactionWork) error {
	c.at.Store(&w.from)
	defer c.at.Store(nil)
	report, err := compactor.Run(ctx, c.writer, w.from, compactor.Config{
		Rate: w.rate, Last: c.writer.WriteLast, Clock: c.n.clock, Log: c.n.cfg.Log,
		Progress: func(now compactor.Cursor) { c.at.Store(&now) },
	})
	c.n.cfg.Log.Info("compaction", "group", c.n.cfg.Group, "finished", report.Cursor.Finished(), "segments", report.Segments, "bytes", report.Bytes,
		"redone_segments", report.RedoneSegments, "redone_bytes", report.RedoneBytes, "error", err)
	if fencedwriter.Stop(err) {
		return err
	}
	return nil
}

// left is what the leader before has not finished; nil: nothing.
func (c *compaction) left(ctx context.Context) (*compactionWork, error) {
	found, err := c.n.ledger.Checkpoint(ctx, c.n.cfg.Group, compactor.Checkpoint)
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
	found, err = c.n.ledger.Checkpoint(ctx, c.n.cfg.Group, api.CompactionPace)
	if err == nil {
		err = json.Unmarshal(found.Value, &p)
	}
	return &compactionWork{from: from, rate: p.Rate}, err
}

func (n *Node) postCompaction(w http.ResponseWriter, r *http.Request, l *leading) (any, error) {
	var t api.CompactionTask
	if err := httpapi.ReadJSON(w, r, maxBody, true, &t); err != nil {
		return nil, err
	}
	from, err := compactor.Begin(compactor.Task{Seed: t.Seed, Bytes: t.Bytes, SegmentBytes: t.SegmentBytes})
	if err != nil || t.Rate < 0 {
		return nil, &ledgerapi.RequestError{Field: "compaction", Value: fmt.Sprintf("%+v", t), Rule: errors.Join(err, errors.New("sizes and rates are positive")).Error()}
	}
	cursor, err := json.Marshal(from)
	if err != nil {
		return nil, err
	}
	rate, err := json.Marshal(pace{t.Rate})
	if err != nil {
		return nil, err
	}
	if !l.compact.busy.CompareAndSwap(false, true) {
		return nil, &httpapi.Problem{Status: http.StatusConflict, Code: "compaction_under_way", Detail: "a compaction is under way: see GET /compaction"}
	}
	_, err = l.writer.Write(r.Context(),
		ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: compactor.Checkpoint, Value: cursor}},
		ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: api.CompactionPace, Value: rate}})
	if err != nil {
		l.compact.busy.Store(false)
		return nil, n.writeError(err)
	}
	l.found()
	l.compact.asked <- compactionWork{from, t.Rate} // there is room: busy admits one at a time
	return api.Compaction{Here: true, Token: l.term.Token(), Cursor: cursor}, nil
}

func (n *Node) getCompaction(_ http.ResponseWriter, r *http.Request) (any, error) {
	found, err := n.ledger.Checkpoint(r.Context(), n.cfg.Group, compactor.Checkpoint)
	if err != nil {
		return nil, err
	}
	cursor, err := compactor.Parse(found.Value)
	if err != nil {
		return nil, err
	}
	a := api.Compaction{Finished: cursor.Finished(), Token: found.Token, Cursor: found.Value}
	if l := n.leading.Load(); l != nil {
		if now := l.compact.at.Load(); now != nil {
			a.Here = true
			a.Cursor, err = json.Marshal(now)
		}
	}
	return a, err
}
