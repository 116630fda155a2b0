package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/client"
)

// history records the answers to callers of a ledger that is killed.
type history struct {
	mu      sync.Mutex
	ranges  []api.RangeAnswer
	ticks   map[string]bool
	records map[string]uint64
	fired   map[string]int64 // by caller: the last acknowledged instant of its jobs
	shared  map[string]uint64
	token   fence.Token
	unknown int
	acked   int
}

// await waits for n more acknowledgements.
func (h *history) await(t *testing.T, more int) {
	t.Helper()
	h.mu.Lock()
	want := h.acked + more
	h.mu.Unlock()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		h.mu.Lock()
		acked := h.acked
		h.mu.Unlock()
		if acked >= want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d writes were acknowledged, want %d", acked, want)
		}
	}
}

func (h *history) note(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func rounds(t *testing.T, usual int) int {
	t.Helper()
	if s := os.Getenv("TENURE_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("TENURE_ROUNDS=%q", s)
		}
		return n
	}
	return usual
}

// kill -9 of the ledger under load: no acknowledged write is lost, the mark never falls, no number is handed out
// twice or skipped, no instant of a job is missed or fired twice, and a strict batch that is repeated until it is
// answered is made once. TENURE_ROUNDS sets the number of rounds.
func TestKilledLedger(t *testing.T) {
	killed(t, served{DB: filepath.Join(t.TempDir(), "l.db")}, rounds(t, 3))
}

// The same on PostgreSQL.
func TestKilledLedgerPostgres(t *testing.T) {
	killed(t, served{DB: servertest.Postgres(t).URL()}, min(rounds(t, 1), 10))
}

func killed(t *testing.T, s served, rounds int) {
	p := startProcess(t, s)
	c := p.client()
	h := &history{ticks: map[string]bool{}, records: map[string]uint64{}, fired: map[string]int64{}, shared: map[string]uint64{}}
	var ordered fence.Stamp // the last one of the strict writer
	for round := 1; round <= rounds; round++ {
		token := fence.Token(round)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for w := range 6 {
			all.Go(func() { h.load(ctx, t, c, token, fmt.Sprintf("%d-%d", round, w)) })
		}
		for w := range 2 {
			all.Go(func() { h.ticking(ctx, t, c, token, fmt.Sprintf("%d-%d", round, w)) })
		}
		all.Go(func() { ordered = h.strictly(ctx, t, c, token, ordered) })
		h.await(t, 60+rand.IntN(60))
		p.kill()
		// The other callers notice by themselves that the ledger is gone and returns.
		p.start()
		h.await(t, 30)
		cancel()
		all.Wait()
		h.check(t, c, round)
	}
	if h.unknown == 0 {
		t.Error("nothing was under way when the ledger was killed")
	}
	fired := int64(0)
	for _, n := range h.fired {
		fired += n * tickJobs
	}
	t.Logf("%d kills: %d ranges, %d ticks, %d records and %d firings were acknowledged, %d outcomes unknown", rounds, len(h.ranges), len(h.ticks), len(h.records), fired, h.unknown)
}

// load writes until ctx ends, and records what was acknowledged.
func (h *history) load(ctx context.Context, t *testing.T, c *client.Client, token fence.Token, who string) {
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("%s-%d", who, n)
		payload, _ := json.Marshal(name)
		r, err := c.Allocate(ctx, "r", at(token), api.SequenceWrite{Name: "ids", N: uint64(n%3) + 1})
		h.told(ctx, t, err, func() { h.ranges = append(h.ranges, r) })
		a, err := c.Apply(ctx, api.Batch{Resource: "r", Stamp: at(token), Writes: []api.Write{
			{Tick: &api.TickWrite{Payload: payload}},
			{Record: &api.RecordWrite{Key: who, Value: payload}},
		}})
		h.told(ctx, t, err, func() {
			h.ticks[name] = true
			h.records[who] = a.Outcomes[1].Record.Version
			h.token = max(h.token, token)
		})
	}
}

func (h *history) told(ctx context.Context, t *testing.T, err error, acked func()) {
	h.note(func() {
		switch {
		case err == nil:
			acked()
			h.acked++
		case errors.Is(err, api.ErrUnknown):
			h.unknown++
		case !errors.Is(err, api.ErrUnavailable) && ctx.Err() == nil:
			t.Errorf("a write: %v", err)
		}
	})
	if err != nil {
		time.Sleep(5 * time.Millisecond)
	}
}

// strictly repeats each batch until it is answered.
func (h *history) strictly(ctx context.Context, t *testing.T, c *client.Client, token fence.Token, last fence.Stamp) fence.Stamp {
	if last.Token != token {
		last = atSeq(token, 0)
	}
	for ctx.Err() == nil {
		last.Seq++
		name := fmt.Sprintf("strict %d.%d", token, last.Seq)
		payload, _ := json.Marshal(name)
		for {
			_, err := c.Apply(context.WithoutCancel(ctx), api.Batch{Resource: "ordered", Stamp: last, Writes: []api.Write{{Tick: &api.TickWrite{Payload: payload}}}})
			h.told(ctx, t, err, func() { h.ticks[name] = true })
			if err == nil {
				break
			}
		}
	}
	return last
}

// check compares the ledger with the history.
func (h *history) check(t *testing.T, c *client.Client, round int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	ctx := t.Context()
	r, err := c.Resource(ctx, "r")
	if err != nil || r.Token < h.token {
		t.Errorf("round %d: the mark is %+v, %v; a write of token %d was acknowledged", round, r, err, h.token)
	}
	there := map[string]int{}
	for _, resource := range []string{"r", "ordered"} {
		for _, k := range whole(t, func(after string) (api.Page[api.Tick], error) { return c.Ticks(ctx, resource, after, 1000) }) {
			var name string
			if err := json.Unmarshal(k.Payload, &name); err != nil {
				t.Fatal(err)
			}
			there[name]++
		}
	}
	for name := range h.ticks {
		if there[name] == 0 {
			t.Errorf("round %d: tick %q was acknowledged and is lost", round, name)
		}
	}
	for name, times := range there {
		if times > 1 {
			t.Errorf("round %d: tick %q is there %d times", round, name, times)
		}
	}
	for key, version := range h.records {
		if rec, err := c.Record(ctx, "r", key); err != nil || rec.Version < version {
			t.Errorf("round %d: record %q is %+v, %v; version %d was acknowledged", round, key, rec, err, version)
		}
	}
	h.checkSequence(t, c, round)
	h.checkJobs(t, c, round)
}

func (h *history) checkSequence(t *testing.T, c *client.Client, round int) {
	t.Helper()
	last, token := uint64(0), fence.Token(0)
	for _, a := range whole(t, func(after string) (api.Page[api.Allocation], error) {
		return c.Allocations(t.Context(), "r", "ids", after, 1000)
	}) {
		if a.First != last+1 || a.Last < a.First || a.Token < token {
			t.Errorf("round %d: after %d of token %d comes %+v", round, last, token, a)
		}
		last, token = a.Last, a.Token
	}
	owner := map[uint64]fence.Token{}
	for _, r := range h.ranges {
		for n := r.First; n <= r.Last; n++ {
			if _, taken := owner[n]; taken {
				t.Errorf("round %d: %d was handed out twice", round, n)
			}
			owner[n] = r.Token
		}
	}
	if numbers := slices.Sorted(maps.Keys(owner)); len(numbers) > 0 && numbers[len(numbers)-1] > last {
		t.Errorf("round %d: %d was handed out, and the ledger knows only up to %d", round, numbers[len(numbers)-1], last)
	}
}

func whole[T any](t *testing.T, read func(after string) (api.Page[T], error)) (all []T) {
	t.Helper()
	for after := ""; ; {
		p, err := read(after)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p.Items...)
		if after = p.Next; after == "" {
			return all
		}
	}
}
