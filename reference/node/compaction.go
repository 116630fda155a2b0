package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/compactor"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// compaction is the long task of the leader: what the leader before has left is gone on
// with, and a new one is begun when somebody asks.
type compaction struct {
	n   *Node
	pen *fencedwriter.Pen
	// asked is buffered by one.
	asked chan compactionWork
	at    atomic.Pointer[compactor.Cursor] // nil: nothing is done here

	mu   sync.Mutex
	busy bool // from the begin of a task to its end
}

type compactionWork struct {
	from compactor.Cursor
	rate int64
}

// pace is kept beside the cursor, so that the next leader goes on as fast.
type pace struct {
	Rate int64 `json:"rate"`
}

func (n *Node) newCompaction(p *fencedwriter.Pen) *compaction {
	return &compaction{n: n, pen: p, asked: make(chan compactionWork, 1), busy: true}
}

// run works until ctx ends or another leads.
func (c *compaction) run(ctx context.Context) error {
	left, err := c.left(ctx)
	for wait := 100 * time.Millisecond; err != nil; wait = min(2*wait, 5*time.Second) {
		c.n.cfg.Log.Warn("what is left of a compaction cannot be read: trying again", "error", err, "again_in", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
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
		c.claim(false)
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
	report, err := compactor.Run(ctx, c.pen, w.from, compactor.Config{
		Rate: w.rate, Last: c.pen.WriteLast, Clock: c.n.clock, Log: c.n.cfg.Log,
		Progress: func(now compactor.Cursor) { c.at.Store(&now) },
	})
	c.n.cfg.Log.Info("compaction", "group", c.n.cfg.Group, "finished", report.Cursor.Finished(), "segments", report.Segments, "bytes", report.Bytes,
		"redone_segments", report.RedoneSegments, "redone_bytes", report.RedoneBytes, "error", err)
	if fencedwriter.Stop(err) {
		return err
	}
	return nil
}

// left is what the leader before has not finished.
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

// claim says that a task begins, or that none is under way; it reports whether that is
// news.
func (c *compaction) claim(busy bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.busy != busy
	c.busy = busy
	return news
}

func (n *Node) postCompaction(w http.ResponseWriter, r *http.Request) {
	l := n.leading.Load()
	if l == nil {
		n.turnAway(w, r)
		return
	}
	var t api.CompactionTask
	if err := httpapi.ReadJSON(w, r, maxBody, true, &t); err != nil {
		n.fail(w, err)
		return
	}
	from, err := compactor.Begin(compactor.Task{Seed: t.Seed, Bytes: t.Bytes, SegmentBytes: t.SegmentBytes})
	if err != nil || t.Rate < 0 {
		n.fail(w, &ledgerapi.RequestError{Field: "compaction", Value: fmt.Sprintf("%+v", t), Rule: errors.Join(err, errors.New("sizes and rates are positive")).Error()})
		return
	}
	if !l.compact.claim(true) {
		n.fail(w, &httpapi.Problem{Status: http.StatusConflict, Code: "compaction_under_way", Detail: "a compaction is under way: see GET /compaction"})
		return
	}
	cursor, err := json.Marshal(from)
	if err == nil {
		var beat []byte
		if beat, err = json.Marshal(pace{t.Rate}); err == nil {
			_, err = l.pen.Write(r.Context(),
				ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: compactor.Checkpoint, Value: cursor}},
				ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: api.CompactionPace, Value: beat}})
		}
	}
	if err != nil {
		l.compact.claim(false)
		n.failWrite(w, r, err)
		return
	}
	l.found()
	l.compact.asked <- compactionWork{from, t.Rate} // there is room: nobody else claims
	httpapi.WriteJSON(w, http.StatusOK, api.Compaction{Here: true, Token: l.term.Token(), Cursor: cursor})
}

func (n *Node) getCompaction(w http.ResponseWriter, r *http.Request) {
	found, err := n.ledger.Checkpoint(r.Context(), n.cfg.Group, compactor.Checkpoint)
	if err != nil {
		n.fail(w, err)
		return
	}
	cursor, err := compactor.Parse(found.Value)
	if err != nil {
		n.fail(w, err)
		return
	}
	a := api.Compaction{Finished: cursor.Finished(), Token: found.Token, Cursor: found.Value}
	if l := n.leading.Load(); l != nil {
		if now := l.compact.at.Load(); now != nil {
			a.Here = true
			if a.Cursor, err = json.Marshal(now); err != nil {
				n.fail(w, err)
				return
			}
		}
	}
	httpapi.WriteJSON(w, http.StatusOK, a)
}
