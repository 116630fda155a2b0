package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/database"
	"github.com/tenurehq/tenure/reference/ledger/state"
)

func stampAt(token fence.Token, seq uint64) fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: "billing", Token: token, Seq: seq}
}

func tick(token fence.Token, seq uint64, payload string) api.Batch {
	data, _ := json.Marshal(payload)
	return api.Batch{Resource: "r", Stamp: stampAt(token, seq), Writes: []api.Write{{Tick: &api.TickWrite{Payload: data}}}}
}

func numbers(n uint64) api.Batch {
	return api.Batch{Resource: "r", Stamp: stampAt(1, 0), Writes: []api.Write{{Sequence: &api.SequenceWrite{Name: "ids", N: n}}}}
}

func opened(t *testing.T, cfg Config) *Ledger {
	t.Helper()
	if cfg.DB == "" {
		cfg.DB = filepath.Join(t.TempDir(), "l.db")
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	l, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func payloads(t *testing.T, l *Ledger) (all []string) {
	t.Helper()
	p, err := l.Ticks(t.Context(), "r", "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range p.Items {
		var s string
		if err := json.Unmarshal(k.Payload, &s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// held blocks commits until it is released.
type held struct {
	reached, release chan struct{}
}

func hold(l *Ledger) *held {
	h := &held{make(chan struct{}, 100), make(chan struct{})}
	l.db.Commit = func(ctx context.Context, c *database.Tx) error {
		h.reached <- struct{}{}
		<-h.release
		return database.Commit(ctx, c)
	}
	return h
}

// While one group is committed, the next one is collected. A refused batch does not affect
// the others, and the batches of a group are checked in order.
func TestGroupGathers(t *testing.T) {
	l := opened(t, Config{})
	if _, err := l.Apply(t.Context(), tick(4, 0, "first")); err != nil {
		t.Fatal(err)
	}
	h := hold(l)
	var all sync.WaitGroup
	answers := make([]error, 6)
	send := func(i int, b api.Batch) {
		waiting := l.queue.len()
		all.Go(func() { _, answers[i] = l.Apply(t.Context(), b) })
		if i > 0 {
			until(t, func() bool { return l.queue.len() == waiting+1 })
		} else {
			<-h.reached
		}
	}
	send(0, tick(4, 0, "a"))
	send(1, tick(4, 0, "b"))
	send(2, tick(5, 0, "c"))
	send(3, tick(4, 0, "late"))
	bad := tick(5, 0, "half")
	bad.Writes = append(bad.Writes, api.Write{Sequence: &api.SequenceWrite{Name: "ids", First: 7, Last: 7}})
	send(4, bad)
	fresh := numbers(1)
	fresh.Resource, fresh.Writes[0].Sequence = "fresh", &api.SequenceWrite{Name: "ids", First: 7, Last: 7}
	send(5, fresh)
	close(h.release)
	all.Wait()
	var stale *fence.StaleError
	var seq *api.SequenceError
	if answers[0] != nil || answers[1] != nil || answers[2] != nil || !errors.As(answers[3], &stale) || !errors.As(answers[4], &seq) || !errors.As(answers[5], &seq) {
		t.Errorf("the answers are %v", answers)
	}
	if got := fmt.Sprint(payloads(t, l)); got != "[first a b c]" {
		t.Errorf("the ticks are %s", got)
	}
	if p, err := l.Resources(t.Context(), "", 0); err != nil || len(p.Items) != 1 {
		t.Errorf("a refused batch left a resource behind: %+v, %v", p, err)
	}
	if n := len(h.reached); n != 1 {
		t.Errorf("what waited took %d commits, want 1", n)
	}
}

// A batch that the database refuses does not affect the others in its group.
func TestPoisonedBatch(t *testing.T) {
	l := opened(t, Config{})
	// Insert a tick by hand where the resource's first one would be.
	if _, err := l.db.Writer().ExecContext(t.Context(), "INSERT INTO tick VALUES ('damaged', 1, 1, 0, '', '', 0)"); err != nil {
		t.Fatal(err)
	}
	var group []*op
	for i := range 5 {
		b := tick(1, 0, fmt.Sprint(i))
		if i == 3 {
			b.Resource = "damaged"
		}
		group = append(group, &op{kind: state.Write, batch: b, done: make(chan struct{})})
	}
	l.commit(group)
	for i, o := range group {
		<-o.done
		if (o.Err == nil) != (i != 3) || i == 3 && !errors.Is(o.Err, api.ErrUnavailable) {
			t.Errorf("batch %d: %v", i, o.Err)
		}
	}
	if got := fmt.Sprint(payloads(t, l)); got != "[0 1 2 4]" {
		t.Errorf("the ticks are %s", got)
	}
}

func until(t *testing.T, what func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !what(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come")
		}
	}
}

// A caller that leaves while its batch waits has withdrawn it, and its error says so. If it
// leaves during the commit, the outcome is unknown, and the batch is made once.
func TestCallerGoesAway(t *testing.T) {
	l := opened(t, Config{})
	h := hold(l)
	gone := func(payload string, when func()) error {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := l.Apply(ctx, tick(1, 0, payload)); done <- err }()
		when()
		cancel()
		return <-done
	}
	during := gone("during", func() { <-h.reached })
	before := gone("before", func() { until(t, func() bool { return l.queue.len() == 1 }) })
	close(h.release)
	if !errors.Is(during, api.ErrUnknown) || !errors.Is(before, api.ErrUnavailable) || errors.Is(before, api.ErrUnknown) {
		t.Errorf("during the commit: %v; before: %v", during, before)
	}
	if _, err := l.Apply(t.Context(), tick(1, 0, "after")); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(payloads(t, l)); got != "[during after]" {
		t.Errorf("the ticks are %s", got)
	}
}

// The queue is bounded by number and by size. If it is full, a caller gets an error at once,
// and nothing is written.
func TestQueueIsBounded(t *testing.T) {
	l := opened(t, Config{Queue: 2, QueueBytes: 10_000})
	h := hold(l)
	done := make(chan error, 10)
	send := func(payload string) {
		go func() { _, err := l.Apply(t.Context(), tick(1, 0, payload)); done <- err }()
	}
	send("a")
	<-h.reached
	send("b")
	until(t, func() bool { return l.queue.len() == 1 })
	large := make([]byte, 20_000)
	for i := range large {
		large[i] = 'x'
	}
	atOnce, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := l.Apply(atOnce, tick(1, 0, string(large))); !errors.Is(err, api.ErrBusy) {
		t.Errorf("a large batch beside another: %v", err)
	}
	send("c")
	until(t, func() bool { return l.queue.len() == 2 })
	if _, err := l.Apply(atOnce, tick(1, 0, "d")); !errors.Is(err, api.ErrBusy) {
		t.Errorf("a third batch: %v", err)
	}
	close(h.release)
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	// A large batch alone is accepted.
	if _, err := l.Apply(t.Context(), tick(1, 0, string(large))); err != nil {
		t.Errorf("a large batch alone: %v", err)
	}
	if n := len(payloads(t, l)); n != 4 {
		t.Errorf("%d ticks, want 4", n)
	}
}

// After a failed commit the outcome is unknown, whatever it was, and the ledger continues
// from the database: a repeated strict batch is made exactly once.
func TestCommitFails(t *testing.T) {
	broken := errors.New("input/output error")
	for _, tt := range []struct {
		name string
		made bool
	}{{"not made", false}, {"made, and the answer lost", true}} {
		t.Run(tt.name, func(t *testing.T) {
			l := opened(t, Config{})
			if _, err := l.Apply(t.Context(), tick(1, 1, "a")); err != nil {
				t.Fatal(err)
			}
			l.db.Commit = func(ctx context.Context, c *database.Tx) error {
				if tt.made {
					if err := database.Commit(ctx, c); err != nil {
						t.Error(err)
					}
				}
				return broken
			}
			first, err := l.Apply(t.Context(), tick(1, 2, "b"))
			if !errors.Is(err, api.ErrUnknown) || !errors.Is(err, broken) {
				t.Fatalf("the commit failed, and the answer is %+v, %v", first, err)
			}
			// A refusal that depends on uncommitted data is not sent either.
			if _, err := l.Apply(t.Context(), numbers(1)); !errors.Is(err, api.ErrUnknown) {
				t.Errorf("numbers: %v", err)
			}
			l.db.Commit = database.Commit
			again, err := l.Apply(t.Context(), tick(1, 2, "b"))
			if err != nil || again.Retried != tt.made || again.Outcomes[0].Tick.N != 2 {
				t.Errorf("repeated, it is answered %+v, %v", again, err)
			}
			if got := fmt.Sprint(payloads(t, l)); got != "[a b]" {
				t.Errorf("the ticks are %s", got)
			}
			want := uint64(1)
			if tt.made {
				want = 2
			}
			a, err := l.Apply(t.Context(), numbers(1))
			if err != nil || a.Outcomes[0].Sequence.First != want {
				t.Errorf("the next number is %+v, %v, want %d", a, err, want)
			}
		})
	}
}

// Numbers are handed out once each and in order, however many callers there are. The list of
// allocations has no gap and no overlap.
func TestSequenceOfMany(t *testing.T) {
	l := opened(t, Config{})
	const callers, each = 50, 20
	var mu sync.Mutex
	seen := map[uint64]bool{}
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			last := uint64(0)
			for range each {
				a, err := l.Apply(t.Context(), numbers(3))
				if err != nil {
					t.Error(err)
					return
				}
				r := a.Outcomes[0].Sequence
				if r.First <= last || r.Last != r.First+2 {
					t.Errorf("after %d comes %+v", last, r)
				}
				last = r.Last
				mu.Lock()
				for n := r.First; n <= r.Last; n++ {
					if seen[n] {
						t.Errorf("%d was handed out twice", n)
					}
					seen[n] = true
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(seen) != callers*each*3 {
		t.Errorf("%d numbers, want %d", len(seen), callers*each*3)
	}
	assertContinuous(t, l.db.Reader, callers*each*3)
}

// assertContinuous reads the database directly.
func assertContinuous(t *testing.T, db *sql.DB, last uint64) {
	t.Helper()
	var wrong, highest uint64
	err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FILTER (WHERE first_seq <> before + 1 OR token < earlier), MAX(last_seq) FROM (
		SELECT first_seq, last_seq, token, LAG(last_seq, 1, 0) OVER w AS before, LAG(token, 1, 0) OVER w AS earlier
		FROM allocation WINDOW w AS (ORDER BY n)) AS a`).Scan(&wrong, &highest)
	if err != nil || wrong != 0 || highest != last {
		t.Errorf("%d allocations do not follow the one before, the last number is %d, want %d; %v", wrong, highest, last, err)
	}
}

// The histories keep at least what is promised, and not much more.
func TestHistoryIsBounded(t *testing.T) {
	const keep = 100
	l := opened(t, Config{History: keep, Rejections: 7})
	b := api.Batch{Resource: "r", Stamp: stampAt(2, 0)}
	for range api.MaxWrites {
		b.Writes = append(b.Writes, api.Write{Tick: &api.TickWrite{}})
	}
	if _, err := l.Apply(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	p, err := l.Ticks(t.Context(), "r", "", 1000)
	if err != nil || len(p.Items) < keep || len(p.Items) > keep+2*state.TrimEvery {
		t.Errorf("%d ticks are kept, %v; want at least %d and not many more", len(p.Items), err, keep)
	}
	for range 20 {
		if _, err := l.Apply(t.Context(), tick(1, 0, "stale")); err == nil {
			t.Fatal("a stale write was accepted")
		}
	}
	r, err := l.Rejections(t.Context(), "", 100)
	if err != nil || r.Total != 20 || r.Kept != 7 || len(r.Items) != 7 || r.Items[0].ID != 20 || r.Items[6].ID != 14 {
		t.Errorf("of 20 refused writes there are %+v, %v", r, err)
	}
}
