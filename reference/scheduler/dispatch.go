package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/scheduler/outbox"
	"github.com/tenurehq/tenure/reference/wait"
)

// DefaultRun is what a job runs if its payload has no member "run".
const DefaultRun = "count"

// undeliverable stands for the worker of a firing that every worker would refuse.
const undeliverable = "(refused)"

// MaxOrders is how many orders are sent at once.
const MaxOrders = 100

// dispatcher sends firings and standing orders to the workers for one term.
type dispatcher struct {
	cfg      Config
	stamp    fence.Stamp
	client   *http.Client
	outbox   *outbox.Outbox
	counters *counters

	mu       sync.Mutex
	standing api.Orders
	version  uint64 // version of their record
	changes  int    // of the standing orders, seen by the lanes
}

// orderOf converts a firing into an order to a worker.
func orderOf(f *outbox.Firing) api.Order {
	var p struct {
		Run string `json:"run"`
	}
	if json.Unmarshal(f.Payload, &p) != nil || p.Run == "" {
		p.Run = DefaultRun
	}
	return api.Order{Name: f.Job, Run: p.Run, Payload: f.Payload, Job: f.Job, AtMS: f.AtMS}
}

// drain is how long requests may take after the last one was sent. If a request is cut off,
// its outcome is unknown.
const drain = time.Second

// run sends until ctx ends or a worker refuses because another node leads. That refusal is the
// error.
func (d *dispatcher) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	sending, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	var wait sync.WaitGroup
	refused := make([]error, len(d.cfg.Workers))
	for i := range d.cfg.Workers {
		wait.Go(func() {
			if refused[i] = d.lane(ctx, sending, i); refused[i] != nil {
				stop()
			}
		})
	}
	d.fetch(ctx)
	defer time.AfterFunc(drain, cut).Stop()
	wait.Wait()
	return errors.Join(refused...)
}

// command sets the standing orders, once per version of their record.
func (d *dispatcher) command(o api.Orders, version uint64) {
	d.mu.Lock()
	changed := version != d.version
	if changed {
		d.standing, d.version = o, version
		d.changes++
	}
	d.mu.Unlock()
	if changed {
		d.outbox.WakeAll()
	}
}

func (d *dispatcher) commands() (api.Orders, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.standing, d.changes
}

// fetch fills the outbox from the ledger while the ledger has more.
func (d *dispatcher) fetch(ctx context.Context) {
	for ctx.Err() == nil {
		pause := time.Hour
		if d.outbox.WantsMore() {
			d.outbox.SetMore(false)
			if left, err := d.fetchAll(ctx); err != nil {
				d.outbox.SetMore(true)
				pause = time.Second
				d.cfg.Log.Warn("cannot read pending firings, trying again", "error", err)
			} else if left {
				d.outbox.SetMore(true)
			}
		}
		select {
		case <-ctx.Done():
		case <-d.outbox.Room():
		case <-time.After(pause):
		}
	}
}

// fetchAll reads pending firings, the oldest first. left: some did not fit.
func (d *dispatcher) fetchAll(ctx context.Context) (left bool, err error) {
	for after := ""; ; {
		d.outbox.Reading()
		page, err := d.cfg.Ledger.Firings(ctx, d.cfg.Resource, true, after, pageItems)
		if err != nil {
			d.outbox.Read(nil)
			return true, err
		}
		found := make([]*outbox.Firing, len(page.Items))
		for i, f := range page.Items {
			found[i] = &outbox.Firing{Job: f.Job, AtMS: f.AtMS, Payload: f.Payload}
		}
		full := d.outbox.Read(found)
		if after = page.Next; after == "" {
			return false, nil
		}
		if full {
			return true, nil
		}
	}
}

const (
	shortPause = 100 * time.Millisecond
	longPause  = 5 * time.Second
)

// lane serves one worker: it sends the standing orders when they change and when the worker is
// reachable again, and the firings in the lane. It begins nothing after ctx has ended; a request
// that was begun ends with sending.
func (d *dispatcher) lane(ctx, sending context.Context, l int) error {
	worker, sent, rest := d.cfg.Workers[l], 0, shortPause
	wake := d.outbox.Wake(l)
	for down := true; ctx.Err() == nil; {
		standing, changes := d.commands()
		var batch []*outbox.Firing
		body := standing
		if !down && sent == changes {
			if batch = d.outbox.Take(l, MaxOrders); len(batch) == 0 {
				select {
				case <-ctx.Done():
					return nil
				case <-wake:
				}
				continue
			}
			body = api.Orders{Orders: make([]api.Order, len(batch))}
			for i, f := range batch {
				body.Orders[i] = orderOf(f)
			}
		}
		under := sending
		if batch == nil {
			under = ctx // nothing would have to be recorded
		} else if d.cfg.Sending != nil {
			d.cfg.Sending()
		}
		answer := d.send(under, worker, body)
		if batch == nil && ctx.Err() != nil {
			return nil
		}
		var stale *fence.StaleError
		if errors.As(answer.err, &stale) {
			return fmt.Errorf("worker %s: %w", worker, answer.err)
		}
		d.settle(l, batch, answer)
		switch {
		case answer.err == nil:
			if batch == nil {
				sent = changes
			}
			down, rest = false, shortPause
			d.outbox.Mark(l, false)
			continue
		case answer.bad, answer.busy && batch == nil:
			if batch == nil {
				// Firings do not wait until somebody corrects the record.
				d.cfg.Log.Error("a worker refuses the standing orders as invalid and keeps its own", "worker", worker, "error", answer.err)
				sent, down = changes, false
				d.outbox.Mark(l, false)
			}
			continue
		}
		if !down || rest == shortPause {
			d.cfg.Log.Warn("cannot send orders to a worker", "worker", worker, "error", answer.err)
		}
		down = true
		d.outbox.Mark(l, true)
		if !wait.For(ctx, rest) {
			return nil
		}
		rest = min(2*rest, longPause)
	}
	return nil
}

// settle handles the result of a batch.
func (d *dispatcher) settle(l int, batch []*outbox.Firing, a answer) {
	worker := d.cfg.Workers[l]
	if len(batch) == 0 {
		return
	}
	d.counters.dispatched(worker, len(batch), a.took, a.err)
	switch {
	case a.err == nil:
		d.outbox.Done(batch, worker)
	case a.bad && len(batch) == 1:
		d.cfg.Log.Error("a worker refuses a firing as invalid; it is not sent again", "job", batch[0].Job, "at_ms", batch[0].AtMS, "worker", worker, "error", a.err)
		d.outbox.Done(batch, undeliverable)
	case a.bad:
		for _, f := range batch {
			f.Alone = true
		}
		d.outbox.Again(l, batch)
	case a.definite:
		d.requeue(l, batch)
	default:
		now := d.cfg.Clock.Now()
		for _, f := range batch {
			if f.Unsure == 0 {
				f.Unsure = now
			}
		}
		d.requeue(l, batch)
	}
}

// requeue queues undelivered firings: for another worker, or again for this one if it may have
// them.
func (d *dispatcher) requeue(l int, batch []*outbox.Firing) {
	now := d.cfg.Clock.Now()
	var stay, leave []*outbox.Firing
	for _, f := range batch {
		if f.Unsure == 0 || now.Sub(f.Unsure) > d.cfg.Patience {
			leave = append(leave, f)
		} else {
			stay = append(stay, f)
		}
	}
	if i := slices.IndexFunc(leave, func(f *outbox.Firing) bool { return f.Unsure != 0 }); i >= 0 {
		d.cfg.Log.Warn("a worker does not say whether it has firings; they go to another", "worker", d.cfg.Workers[l], "job", leave[i].Job, "firings", len(leave))
	}
	d.outbox.Mark(l, true)
	d.outbox.Again(l, stay)
	d.outbox.Elsewhere(l, leave)
}

// decodeFleet reads the standing orders from their record.
func decodeFleet(value json.RawMessage, log *slog.Logger) api.Orders {
	var f api.Fleet
	if err := json.Unmarshal(value, &f); err != nil {
		log.Error("cannot read the record of the standing orders; the workers keep theirs", "record", api.FleetRecord, "error", err)
		return api.Orders{}
	}
	return api.Orders{Replace: true, Orders: f.Orders}
}
