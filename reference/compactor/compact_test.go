package compactor_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/compactor"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// checkpointWriter keeps the last checkpoint, and can be made to fail.
type checkpointWriter struct {
	value json.RawMessage
	n     int
	fail  func(n int) error
}

func (p *checkpointWriter) Write(_ context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	p.n++
	var err error
	if p.fail != nil {
		err = p.fail(p.n)
	}
	if err == nil || errors.Is(err, ledgerapi.ErrUnknown) {
		p.value = writes[0].Checkpoint.Value
	}
	return ledgerapi.Answer{Outcomes: make([]ledgerapi.Outcome, 1)}, err
}

var task = compactor.Task{Seed: 7, Bytes: 1_000_000_000, SegmentBytes: 3_000_000}

func begin(t *testing.T, of compactor.Task) compactor.Cursor {
	t.Helper()
	c, err := compactor.Begin(of)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func cursor(t *testing.T, p *checkpointWriter) compactor.Cursor {
	t.Helper()
	c, err := compactor.Parse(p.value)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func fast() compactor.Config { return compactor.Config{Rate: -1, Log: slog.New(slog.DiscardHandler)} }

// The segments depend only on the seed: they are the same each time, have the requested size
// on average, and add up to all bytes.
func TestDeterministic(t *testing.T) {
	var digest string
	for range 2 {
		p := &checkpointWriter{}
		r, err := compactor.Run(t.Context(), p, begin(t, compactor.Task{Seed: 1}), fast())
		if err != nil || !r.Cursor.Finished() || r.Bytes != 100_000_000_000 || r.RedoneSegments != 0 {
			t.Fatalf("%+v %v", r, err)
		}
		if r.Segments < 1450 || r.Segments > 1680 {
			t.Errorf("%d segments", r.Segments)
		}
		if digest != "" && r.Cursor.Digest != digest {
			t.Error("another digest")
		}
		digest = r.Cursor.Digest
		if c := cursor(t, p); c != r.Cursor || c.Claimed != c.Segment {
			t.Errorf("recorded %+v, reported %+v", c, r.Cursor)
		}
	}
	r, err := compactor.Run(t.Context(), &checkpointWriter{}, begin(t, compactor.Task{Seed: 2}), fast())
	if err != nil || r.Cursor.Digest == digest {
		t.Error("another seed gives the same segments")
	}
}

// Wherever leaders stop, the next one continues from what was recorded, and the result is the
// same. The redone count is at least what was done twice, and at most one claim for each
// leader.
func TestLeadersGoOn(t *testing.T) {
	whole, err := compactor.Run(t.Context(), &checkpointWriter{}, begin(t, task), fast())
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 3))
		p := &checkpointWriter{}
		c := begin(t, task)
		did := make(map[int64]int)
		leaders := int64(0)
		for !c.Finished() {
			leaders++
			ctx, cancel := context.WithCancel(t.Context())
			die := 1 + r.IntN(60)
			cfg := fast()
			cfg.Every = int64(1 + r.IntN(20))
			cfg.Progress = func(c compactor.Cursor) {
				did[c.Segment-1]++
				if die--; die == 0 {
					cancel()
				}
			}
			p.fail = func(int) error {
				switch r.IntN(15) {
				case 0:
					return ledgerapi.ErrUnknown
				case 1:
					return &fence.StaleError{}
				}
				return nil
			}
			if r.IntN(2) == 0 {
				cfg.Last = p.Write
			}
			if _, err := compactor.Run(ctx, p, c, cfg); err != nil && !fencedwriter.Stop(err) {
				t.Fatal(err)
			}
			cancel()
			if p.value != nil {
				c = cursor(t, p)
			}
		}
		twice := int64(0)
		for _, n := range did {
			twice += int64(n - 1)
		}
		if c.Digest != whole.Cursor.Digest || c.Done != task.Bytes || int64(len(did)) != whole.Segments {
			t.Fatalf("seed %d: %+v, want %+v", seed, c, whole.Cursor)
		}
		if c.RedoneSegments > leaders*20 {
			t.Errorf("seed %d: %d redone by %d leaders", seed, c.RedoneSegments, leaders)
		}
		if twice > c.RedoneSegments {
			t.Errorf("seed %d: %d were done again, it says %d", seed, twice, c.RedoneSegments)
		}
	}
}

// After a leader was killed, the next one reports what it had to redo. A leader that stops in
// order leaves nothing to redo.
func TestRedone(t *testing.T) {
	stopAt := func(segment int64, last bool) *checkpointWriter {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := &checkpointWriter{}
		cfg := fast()
		cfg.Every = 10
		cfg.Progress = func(c compactor.Cursor) {
			if c.Segment == segment {
				cancel()
			}
		}
		if last {
			cfg.Last = p.Write
		}
		if r, err := compactor.Run(ctx, p, begin(t, task), cfg); err != nil || r.Segments != segment {
			t.Fatalf("%+v %v", r, err)
		}
		return p
	}
	for _, tt := range []struct {
		last bool
		want int64
	}{{false, 10}, {true, 0}} {
		p := stopAt(25, tt.last)
		r, err := compactor.Run(t.Context(), p, cursor(t, p), fast())
		if err != nil || !r.Cursor.Finished() || r.RedoneSegments != tt.want || r.Cursor.RedoneSegments != tt.want || (r.RedoneBytes > 0) != (tt.want > 0) || r.Cursor.Leaders != 2 {
			t.Errorf("last %v: %+v %v", tt.last, r, err)
		}
	}
}

// A handover during a checkpoint, also the last one, still records the position: the term has
// ended for ordinary writes, but allows this one. After a refused write nothing more is
// written.
func TestHandoverOnCheckpoint(t *testing.T) {
	whole, err := compactor.Run(t.Context(), &checkpointWriter{}, begin(t, task), fast())
	if err != nil {
		t.Fatal(err)
	}
	all := int((whole.Segments + 9) / 10)
	over := error(&tenure.EndedError{Group: "g", Token: 1, Cause: tenure.ErrResigned})
	for _, tt := range []struct {
		name      string
		at        int
		err       error
		want      int64
		lastTried int
	}{
		{"on the way", 4, over, 30, 1},
		{"on the last", all + 1, over, whole.Segments, 1},
		{"unreachable at the last", all + 1, ledgerapi.ErrUnavailable, whole.Segments, 1},
		{"refused", 4, &fence.StaleError{}, 20, 0},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		p, tried := &checkpointWriter{}, 0
		p.fail = func(n int) error {
			if n != tt.at {
				return nil
			}
			cancel()
			return tt.err
		}
		cfg := fast()
		cfg.Every = 10
		cfg.Last = func(_ context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
			tried++
			p.value = writes[0].Checkpoint.Value
			return ledgerapi.Answer{}, nil
		}
		if _, err := compactor.Run(ctx, p, begin(t, task), cfg); err != nil && !fencedwriter.Stop(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
		cancel()
		if c := cursor(t, p); c.Segment != tt.want || tried != tt.lastTried || tried > 0 && c.Claimed != c.Segment {
			t.Errorf("%s: the last position was tried %d times, and is %+v", tt.name, tried, c)
		}
	}
}

// The rate limit is kept.
func TestPace(t *testing.T) {
	cfg := fast()
	cfg.Rate = 100_000_000
	began := time.Now()
	if _, err := compactor.Run(t.Context(), &checkpointWriter{}, begin(t, compactor.Task{Bytes: 30_000_000, SegmentBytes: 1_000_000}), cfg); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 290*time.Millisecond {
		t.Errorf("30 MB at 100 MB/s took %v", took)
	}
}

// A refused write stops the run at once, an invalid task is refused, and a finished task
// stays finished.
func TestStops(t *testing.T) {
	p := &checkpointWriter{fail: func(n int) error {
		if n == 3 {
			return &fence.StaleError{}
		}
		return nil
	}}
	cfg := fast()
	cfg.Every = 5
	r, err := compactor.Run(t.Context(), p, begin(t, task), cfg)
	if !errors.Is(err, fence.ErrRefused) || r.Segments != 10 || p.n != 3 {
		t.Errorf("%+v %v", r, err)
	}
	for _, bad := range []compactor.Task{{Bytes: -1}, {SegmentBytes: 1}, {Bytes: 1 << 60, SegmentBytes: 2}} {
		if _, err := compactor.Begin(bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	if _, err := compactor.Parse(json.RawMessage(`{"segment":-1}`)); err == nil {
		t.Error("no cursor is taken for one")
	}
	c := begin(t, task)
	c.Done = c.Bytes
	p = &checkpointWriter{}
	if r, err := compactor.Run(t.Context(), p, c, fast()); err != nil || r.Segments != 0 || p.n != 0 {
		t.Errorf("what is done: %+v %v", r, err)
	}
}
