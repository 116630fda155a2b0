package scheduler

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/scheduler/outbox"
)

func newLeaderDouble(t *testing.T, l *ledgerDouble) *leaderDouble {
	t.Helper()
	w := newWorld(t, 1)
	w.l, w.healed = l, true
	s, err := New(Config{Ledger: l, Resource: "g", Clock: l, Log: slog.New(slog.DiscardHandler), Workers: []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}})
	if err != nil {
		t.Fatal(err)
	}
	d := &leaderDouble{w: w, token: 1}
	d.term = s.newTerm(d, fence.Stamp{Deployment: "d", Group: "g", Token: 1})
	w.leaders = append(w.leaders, d)
	return d
}

// Whatever the payloads, the memory for the window, a tick and the outbox is bounded in
// bytes, and all jobs are fired and delivered.
func TestBoundsInBytes(t *testing.T) {
	l := newLedgerDouble()
	large := json.RawMessage(`"` + strings.Repeat("x", ledgerapi.MaxPayload-2) + `"`)
	const jobs = 1200 // 75 MiB
	for i := range jobs {
		key := fmt.Sprint("j-", i)
		l.jobs[key] = ledgerapi.Job{Key: key, Payload: large, NextMS: l.nowMS}
	}
	late := "late" // it has many missed instants, and does not delay the others
	l.jobs[late] = ledgerapi.Job{Key: late, Schedule: "@every 1s", Misfire: ledgerapi.MisfireAll, Payload: large, NextMS: l.nowMS - 100_000}
	d := newLeaderDouble(t, l)
	if err := d.Preload(t.Context()); err != nil {
		t.Fatal(err)
	}
	most := 0
	window := func(w *window) {
		t.Helper()
		bytes := 0
		for _, e := range w.jobs {
			bytes += len(e.job.Payload)
		}
		if bytes > windowBytes || bytes == 0 {
			t.Fatalf("a window of %d bytes", bytes)
		}
	}
	window(d.warm)
	if err := d.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := 0; len(l.jobs) > 1; i++ {
		window(d.window)
		fired := len(l.firings)
		l.nowMS += 1000
		if err := d.tick(t.Context(), l.nowMS); err != nil {
			t.Fatal(err)
		}
		of := make(map[string]int)
		for _, f := range l.firings[fired:] {
			of[f.Job]++
		}
		if n := len(l.firings) - fired; n == 0 || n*len(large) > tickBytes || i == 0 && of[late] > n/2 {
			t.Fatalf("tick %d fired %d, %d of one", i, n, of[late])
		}
		if err := d.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		most = max(most, d.d.outbox.Bytes())
	}
	if most > outbox.MaxBytes || most < outbox.MaxBytes*9/10 {
		t.Errorf("%d bytes waited for the workers", most)
	}
	for i := 0; len(l.delivered()) < len(l.firings); i++ {
		d.step(4)
		for lane := range workers {
			for _, f := range d.d.outbox.Take(lane, MaxOrders) {
				d.d.outbox.Done([]*outbox.Firing{f}, "w")
			}
		}
		d.leave(t.Context(), lastDouble{d})
		if i > 100 {
			t.Fatalf("%d of %d are delivered", len(l.delivered()), len(l.firings))
		}
	}
	if d.d.outbox.Bytes() != 0 || d.d.outbox.Size() != 0 {
		t.Errorf("%d bytes of %d firings are left", d.d.outbox.Bytes(), d.d.outbox.Size())
	}
}

func (l *ledgerDouble) delivered() (all []string) {
	for _, f := range l.firings {
		if f.DeliveredMS != 0 {
			all = append(all, f.Job)
		}
	}
	return all
}

// One job always fits, however large it is.
func TestOneAlwaysFits(t *testing.T) {
	huge := json.RawMessage(`"` + strings.Repeat("x", windowBytes) + `"`)
	w := newWindow([]ledgerapi.Job{{Key: "a", Payload: huge, NextMS: 1}, {Key: "b", NextMS: 2}}, 10, false, 1, 2)
	plan := w.plan(5, 1000, 100)
	if len(plan) != 1 || plan[0].job.Key != "a" {
		t.Fatalf("%d are planned", len(plan))
	}
}

// A firing that is recorded as delivered while pending firings are read is not added again.
func TestReadDoesNotBringBack(t *testing.T) {
	l := newLedgerDouble()
	d := newLeaderDouble(t, l)
	for i := range 10 {
		l.post(1, fmt.Sprint("j-", i), "", "", l.nowMS)
	}
	if err := d.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.tick(t.Context(), l.nowMS); err != nil || len(l.firings) != 10 {
		t.Fatal(err, len(l.firings))
	}
	l.reading = func() {
		for lane := range workers {
			d.deliver(lane, MaxOrders)
		}
		l.nowMS += 1000
		if err := d.tick(t.Context(), l.nowMS); err != nil || len(l.delivered()) != 10 {
			t.Error(err, len(l.delivered()))
		}
	}
	if _, err := d.d.fetchAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := d.d.outbox.Size(); n != 0 {
		t.Errorf("%d firings came back", n)
	}
}

// An instant that is later than two ticks is a misfire.
func TestDefaultGrace(t *testing.T) {
	for tick, want := range map[time.Duration]time.Duration{0: 2 * time.Second, 100 * time.Millisecond: 2 * time.Second, 5 * time.Second: 10 * time.Second} {
		if got := (Config{Tick: tick}).withDefaults().Grace; got != want {
			t.Errorf("tick %v: %v, want %v", tick, got, want)
		}
	}
}
