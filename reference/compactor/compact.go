// Package compactor is a long task of a leader, with a cursor: it processes a store of segments,
// one after the other, for minutes, and a new leader continues where the last one stopped.
//
// The segments are synthetic: each has a size and a checksum that follow from a seed, and no
// bytes. So a hundred gigabytes can be processed at any rate, and the digest at the end shows
// whether each segment was counted once, in order.
//
// A leader claims a range of segments before it starts on them, in the write that records its
// progress. The next leader repeats what was claimed and not recorded as done, and counts it
// as redone.
package compactor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/wait"
)

// Checkpoint is the name of the checkpoint with the Cursor.
const Checkpoint = "compaction"

// Task is the work. It is the same for all leaders.
type Task struct {
	Seed uint64 `json:"seed"`
	// Bytes in total. Default 100 GB.
	Bytes int64 `json:"total_bytes"`
	// SegmentBytes is the size of a segment on average. Default 64 MB.
	SegmentBytes int64 `json:"segment_bytes"`
}

// Cursor is the progress of all leaders.
type Cursor struct {
	Task
	// Segment is the first that is not done, Done how many bytes are done.
	Segment int64 `json:"segment"`
	Done    int64 `json:"done_bytes"`
	// Claimed is the first segment that was certainly not begun.
	Claimed int64 `json:"claimed"`
	// Digest is that of the sizes and checksums of all that is done, in order.
	Digest string `json:"digest"`
	// Redone may have been done before by a leader that could not record it.
	RedoneSegments int64 `json:"redone_segments"`
	RedoneBytes    int64 `json:"redone_bytes"`
	// Leaders is how many leaders have worked on it.
	Leaders int `json:"leaders"`
}

// Finished reports whether nothing is left to do.
func (c Cursor) Finished() bool { return c.Bytes > 0 && c.Done >= c.Bytes }

// Begin returns the cursor of a new task.
func Begin(t Task) (Cursor, error) {
	const gigabyte, megabyte = 1_000_000_000, 1_000_000
	t.Bytes, t.SegmentBytes = cmp.Or(t.Bytes, 100*gigabyte), cmp.Or(t.SegmentBytes, 64*megabyte)
	c := Cursor{Task: t}
	return c, c.validate()
}

// Parse reads a cursor from its checkpoint.
func Parse(value json.RawMessage) (c Cursor, err error) {
	if err = json.Unmarshal(value, &c); err == nil {
		err = c.validate()
	}
	return c, err
}

// maxSegments bounds the time of a task with tiny segments.
const maxSegments = 10_000_000

func (c Cursor) validate() error {
	switch {
	case c.Bytes < 1 || c.SegmentBytes < 2:
		return fmt.Errorf("compactor: %d bytes in segments of %d bytes; both must be positive", c.Bytes, c.SegmentBytes)
	case c.Bytes/c.SegmentBytes > maxSegments:
		return fmt.Errorf("compactor: %d bytes in segments of %d bytes are more than %d segments", c.Bytes, c.SegmentBytes, maxSegments)
	case c.Segment < 0 || c.Done < 0 || c.Done > c.Bytes || c.Claimed < 0 || c.RedoneSegments < 0 || c.RedoneBytes < 0:
		return fmt.Errorf("compactor: invalid cursor: segment %d, %d of %d bytes, claimed %d", c.Segment, c.Done, c.Bytes, c.Claimed)
	}
	return nil
}

// Config configures a run. A zero field has its default.
type Config struct {
	// Rate is the most bytes that are processed in a second. Default 1 GB; below 0 there is no
	// limit.
	Rate int64
	// Every is how many segments are claimed at once, and so the most that are redone. Default
	// 16.
	Every int64
	// Last, if set, writes the position after ctx has ended, as
	// fencedwriter.TermWriter.WriteLast does. Without it a leader that stops in order leaves its
	// claim.
	Last func(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error)
	// Progress, if set, is called after each segment. It must not block.
	Progress func(Cursor)
	// Clock measures the rate. Default the system's.
	Clock clock.Clock
	// Log, by default slog.Default.
	Log *slog.Logger
}

// Report is what one leader did.
type Report struct {
	Segments       int64  `json:"segments"`
	Bytes          int64  `json:"bytes"`
	RedoneSegments int64  `json:"redone_segments"`
	RedoneBytes    int64  `json:"redone_bytes"`
	Cursor         Cursor `json:"cursor"`
}

// Run continues from a cursor until all is done or ctx ends, and reports what it did. Its error
// is nil in both cases, and otherwise why it had to stop: a write was refused because another
// node leads, or the term is over.
func Run(ctx context.Context, w fencedwriter.Writer, from Cursor, cfg Config) (Report, error) {
	cfg.Rate = cmp.Or(cfg.Rate, 1_000_000_000)
	if cfg.Every <= 0 {
		cfg.Every = 16
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.System()
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	r := &runner{cfg: cfg, w: w, Report: Report{Cursor: from}}
	if err := from.validate(); err != nil {
		return r.Report, err
	}
	if from.Finished() {
		return r.Report, nil
	}
	r.Cursor.Leaders++
	r.redo()
	err := r.run(ctx)
	return r.Report, err
}

type runner struct {
	Report
	cfg Config
	w   fencedwriter.Writer
}

// redo counts what another leader had claimed, before it is done again: this leader may not get
// to record it either.
func (r *runner) redo() {
	c := &r.Cursor
	left := c.Bytes - c.Done
	for n := c.Segment; n < c.Claimed && left > 0; n++ {
		size, _ := c.segment(n)
		size = min(size, left)
		left -= size
		r.RedoneSegments++
		r.RedoneBytes += size
	}
	c.RedoneSegments += r.RedoneSegments
	c.RedoneBytes += r.RedoneBytes
}

func (r *runner) run(ctx context.Context) error {
	timer := r.cfg.Clock.NewTimer()
	defer timer.Stop()
	due := r.cfg.Clock.Now()
	for !r.Cursor.Finished() {
		if err := r.record(ctx, r.Cursor.Segment+r.cfg.Every); err != nil {
			return r.stopped(ctx, err)
		}
		if ctx.Err() != nil {
			return r.leave(ctx) // do not start what was not claimed
		}
		for until := r.Cursor.Segment + r.cfg.Every; r.Cursor.Segment < until && !r.Cursor.Finished(); {
			size := r.next()
			if r.cfg.Rate > 0 {
				due = due.Add(time.Duration(float64(size) / float64(r.cfg.Rate) * float64(time.Second)))
			}
			if !r.wait(ctx, timer, due) {
				return r.leave(ctx)
			}
			// Do not make up for lost time in a burst.
			due = max(due, r.cfg.Clock.Now().Add(-time.Second))
		}
	}
	if err := r.record(ctx, r.Cursor.Segment); err != nil {
		return r.stopped(ctx, err)
	}
	if ctx.Err() != nil {
		return r.leave(ctx) // it may not have come to be written
	}
	return nil
}

// stopped is why a position could not be recorded. If the leader ended the term itself, the last
// position is still recorded.
func (r *runner) stopped(ctx context.Context, err error) error {
	if fencedwriter.Stop(err) && !errors.Is(err, fence.ErrRefused) {
		_ = r.leave(ctx)
	}
	return err
}

// wait reports whether to continue.
func (r *runner) wait(ctx context.Context, timer clock.Timer, until clock.Instant) bool {
	for r.cfg.Clock.Now() < until {
		timer.Set(until)
		select {
		case <-ctx.Done():
			return false
		case <-timer.C():
		}
	}
	return ctx.Err() == nil
}

// next does the next segment.
func (r *runner) next() int64 {
	c := &r.Cursor
	size, sum := c.segment(c.Segment)
	size = min(size, c.Bytes-c.Done)
	digest := sha256.Sum256(fmt.Appendf(nil, "%s %d %d %x", c.Digest, c.Segment, size, sum))
	c.Digest = hex.EncodeToString(digest[:16])
	c.Segment++
	c.Done += size
	r.Segments++
	r.Bytes += size
	if r.cfg.Progress != nil {
		r.cfg.Progress(*c)
	}
	return size
}

// segment is the size and the checksum of a segment.
func (t Task) segment(n int64) (size int64, sum uint64) {
	var key [16]byte
	binary.LittleEndian.PutUint64(key[:8], t.Seed)
	binary.LittleEndian.PutUint64(key[8:], uint64(n))
	h := sha256.Sum256(key[:])
	spread := binary.LittleEndian.Uint64(h[:8]) % uint64(t.SegmentBytes)
	return t.SegmentBytes/2 + int64(spread) + 1, binary.LittleEndian.Uint64(h[8:16])
}

// record writes the position and the claim beyond it. It retries until that is written, ctx ends
// or the term does. Writing a checkpoint twice changes nothing.
func (r *runner) record(ctx context.Context, claim int64) error {
	c := r.Cursor
	c.Claimed = claim
	write, err := c.write()
	if err != nil {
		return err
	}
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		_, err := r.w.Write(ctx, write)
		switch {
		case err == nil:
			r.Cursor = c
			return nil
		case fencedwriter.Stop(err):
			return err
		case !errors.Is(err, ledgerapi.ErrUnknown) && !errors.Is(err, ledgerapi.ErrUnavailable) && !errors.Is(err, ledgerapi.ErrBusy):
			return fmt.Errorf("compactor: record the position: %w", err)
		}
		r.cfg.Log.Warn("cannot record the position, trying again", "segment", c.Segment, "error", err)
		if !wait.For(ctx, pause) {
			return nil
		}
	}
}

// leave records the position without a claim, if possible.
func (r *runner) leave(ctx context.Context) error {
	if r.cfg.Last == nil {
		return nil
	}
	c := r.Cursor
	c.Claimed = c.Segment
	write, err := c.write()
	if err == nil {
		_, err = r.cfg.Last(context.WithoutCancel(ctx), write)
	}
	if err != nil {
		r.cfg.Log.Warn("cannot record the last position; some segments will be redone", "segment", c.Segment, "error", err)
		return nil
	}
	r.Cursor = c
	return nil
}

func (c Cursor) write() (ledgerapi.Write, error) {
	value, err := json.Marshal(c)
	return ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: Checkpoint, Value: value}}, err
}
