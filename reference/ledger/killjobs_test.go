package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/client"
)

// tickJobs is how many jobs a tick of the killed ledger fires together.
const tickJobs = 5

func tickJob(who string, i int) string { return fmt.Sprintf("%s/%d", who, i) }

// ticking acts as a scheduler until ctx ends: it fires all jobs that are due at 1, 2, 3 and
// so on together, and records the deliveries of the previous tick. If an answer is lost, it
// reads the jobs again, as a leader does.
func (h *history) ticking(ctx context.Context, t *testing.T, c *client.Client, token fence.Token, who string) {
	var due int64
	for ctx.Err() == nil {
		var writes []api.Write
		for i := range tickJobs {
			key := tickJob(who, i)
			if due == 0 {
				writes = append(writes, job(key, 1))
				continue
			}
			writes = append(writes, fire(key, due, due, due+1))
			if due > 1 {
				writes = append(writes, delivered(key, due-1, "w"))
			}
		}
		// A write that was sent when the round ends must have its outcome before the check.
		a, err := c.Apply(context.WithoutCancel(ctx), api.Batch{Resource: "r", Stamp: at(token), Writes: writes})
		h.told(ctx, t, err, func() { h.fired[who] = due })
		if err != nil {
			due = h.whereIs(ctx, t, c, tickJob(who, 0), due)
			continue
		}
		for _, o := range a.Outcomes {
			if o.Fire != nil && *o.Fire != (api.FireOutcome{}) || o.Delivered != nil && *o.Delivered != (api.DeliveredOutcome{}) {
				t.Errorf("%s at %d: %+v %+v", who, due, o.Fire, o.Delivered)
			}
		}
		due++
		version, err := c.PutShared(context.WithoutCancel(ctx), "prod", "s", who, value(due), nil)
		h.told(ctx, t, err, func() { h.shared[who] = version })
	}
}

// whereIs reads a job, with retries.
func (h *history) whereIs(ctx context.Context, t *testing.T, c *client.Client, key string, due int64) int64 {
	for ctx.Err() == nil {
		j, err := c.Job(ctx, "r", key)
		switch {
		case err == nil:
			return j.NextMS
		case errors.Is(err, api.ErrNotFound):
			return 0
		case !errors.Is(err, api.ErrUnavailable) && ctx.Err() == nil:
			t.Errorf("a read: %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return due
}

// checkJobs checks that each instant of every job was fired once, in order and without a gap,
// up to the job's next instant, which is not before the acknowledged one, and that a tick
// fired all of its jobs or none.
func (h *history) checkJobs(t *testing.T, c *client.Client, round int) {
	t.Helper()
	ctx := t.Context()
	last, pending := map[string]int64{}, uint64(0)
	for _, f := range whole(t, func(after string) (api.Page[api.Firing], error) { return c.Firings(ctx, "r", false, after, 1000) }) {
		if f.AtMS != last[f.Job]+1 {
			t.Errorf("round %d: %s was fired at %d after %d", round, f.Job, f.AtMS, last[f.Job])
		}
		last[f.Job] = f.AtMS
		if f.DeliveredMS == 0 {
			pending++
		}
	}
	jobs := uint64(0)
	for who, acked := range h.fired {
		for i := range tickJobs {
			key := tickJob(who, i)
			j, err := c.Job(ctx, "r", key)
			if err != nil || last[key] < acked || j.NextMS != last[key]+1 || last[key] != last[tickJob(who, 0)] {
				t.Errorf("round %d: %s stands at %+v, %v, and was last fired at %d; %d was acknowledged", round, key, j, err, last[key], acked)
			}
			jobs++
		}
	}
	if r, err := c.Resource(ctx, "r"); err != nil || r.FiringsPending != pending || r.Jobs < jobs {
		t.Errorf("round %d: there are %d pending and %d jobs, the ledger counts %+v, %v", round, pending, jobs, r, err)
	}
	for key, version := range h.shared {
		if rec, err := c.Shared(ctx, "prod", "s", key); err != nil || rec.Version < version {
			t.Errorf("round %d: shared record %q is %+v, %v; version %d was acknowledged", round, key, rec, err, version)
		}
	}
}
