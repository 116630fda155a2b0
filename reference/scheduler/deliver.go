package scheduler

import (
	"context"
	"math"
	"time"

	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/wait"
)

// recordDelivered records deliveries that did not fit into the tick.
func (t *term) recordDelivered(ctx context.Context) error {
	for ctx.Err() == nil {
		delivered := t.d.outbox.Unrecorded(ledgerapi.MaxWrites)
		if len(delivered) < ledgerapi.MaxWrites {
			return nil // the next tick records them
		}
		if err := t.writeDelivered(ctx, t.w, delivered); err != nil {
			return err
		}
	}
	return nil
}

func (t *term) writeDelivered(ctx context.Context, w fencedwriter.Writer, delivered []ledgerapi.DeliveredWrite) error {
	writes := make([]ledgerapi.Write, len(delivered))
	for i := range delivered {
		writes[i] = ledgerapi.Write{Delivered: &delivered[i]}
	}
	_, err := w.Write(ctx, writes...)
	if err == nil {
		t.d.outbox.Recorded(len(delivered))
	}
	return err
}

// recordTimeout is how long a leader that stops tries to record deliveries.
const recordTimeout = 2 * time.Second

// leave records deliveries that are not recorded yet, after the last request to a worker.
func (t *term) leave(ctx context.Context, last fencedwriter.Writer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	var err error
	for pause := 20 * time.Millisecond; ctx.Err() == nil && !fencedwriter.Stop(err); {
		delivered := t.d.outbox.Unrecorded(ledgerapi.MaxWrites)
		if len(delivered) == 0 {
			return
		}
		if err = t.writeDelivered(ctx, last, delivered); err != nil && !fencedwriter.Stop(err) {
			wait.For(ctx, pause)
			pause *= 2
		}
	}
	if left := len(t.d.outbox.Unrecorded(math.MaxInt)); left > 0 {
		t.cfg.Log.Warn("deliveries could not be recorded; the next leader sends these firings again", "resource", t.cfg.Resource, "firings", left, "error", err)
	}
}
