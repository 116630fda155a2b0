package outbox

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// Firings for a worker that is down move to one that is up, and back when theirs returns.
// Firings that may have arrived stay with their worker.
func TestOutboxLanes(t *testing.T) {
	o := New(2, 100)
	var all []*Firing
	for i := range 40 {
		all = append(all, &Firing{Job: fmt.Sprint("job-", i), AtMS: 1})
	}
	o.Offer(all)
	o.Offer(all)
	left, right := len(o.lanes[0].queue), len(o.lanes[1].queue)
	if left+right != 40 || left == 0 || right == 0 || o.Size() != 40 {
		t.Fatalf("%d and %d of 40", left, right)
	}
	unsure := o.Take(0, 3)
	for _, f := range unsure {
		f.Unsure = 1
	}
	o.Again(0, unsure)
	o.Mark(0, true)
	if a, b := len(o.lanes[0].queue), len(o.lanes[1].queue); a != 3 || b != 37 {
		t.Fatalf("lane 0 is down: %d and %d", a, b)
	}
	o.Mark(1, true)
	if a, b := len(o.lanes[0].queue), len(o.lanes[1].queue); a+b != 40 || b > 37 {
		t.Fatalf("both are down: %d and %d", a, b)
	}
	o.Mark(0, false)
	if a, b := len(o.lanes[0].queue), len(o.lanes[1].queue); a != 40 || b != 0 {
		t.Fatalf("lane 0 is up: %d and %d", a, b)
	}
	batch := o.Take(0, 100)
	o.Done(batch, "w")
	if d := o.Unrecorded(7); len(d) != 7 || d[0].Worker != "w" {
		t.Fatalf("%+v", d)
	}
	o.Recorded(7)
	if o.Size() != 33 {
		t.Errorf("%d are known", o.Size())
	}
}

// The outbox is bounded: what does not fit stays in the ledger and is read when there is
// room.
func TestOutboxIsBounded(t *testing.T) {
	o := New(1, 4)
	o.SetMore(false)
	for i := range 9 {
		o.Offer([]*Firing{{Job: fmt.Sprint(i), AtMS: 1}})
	}
	if o.Size() != 4 || o.WantsMore() {
		t.Fatalf("%d are known, wants more: %v", o.Size(), o.WantsMore())
	}
	o.Done(o.Take(0, 2), "w")
	o.Recorded(2)
	if !o.WantsMore() {
		t.Error("half is empty, and nothing is asked for")
	}
}

// One firing always fits, however large it is.
func TestOneAlwaysFits(t *testing.T) {
	huge := json.RawMessage(`"` + strings.Repeat("x", MaxBytes) + `"`)
	o := New(1, 10)
	o.Offer([]*Firing{{Job: "a", AtMS: 1, Payload: huge}, {Job: "b", AtMS: 2}})
	if batch := o.Take(0, 10); len(batch) != 1 || !o.more {
		t.Errorf("%d are taken, more is %v", len(batch), o.more)
	}
}
