package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/scheduler/outbox"
	"github.com/tenurehq/tenure/reference/wait"
)

// term is the work of one term.
type term struct {
	*Scheduler
	w      fencedwriter.Writer
	window *window
	cursor Cursor
	d      *dispatcher
	time   ledgerTime
}

func (s *Scheduler) newTerm(w fencedwriter.Writer, stamp fence.Stamp) *term {
	return &term{
		Scheduler: s, w: w, time: ledgerTime{clock: s.cfg.Clock},
		d: &dispatcher{cfg: s.cfg, stamp: stamp, client: s.client, outbox: outbox.New(len(s.cfg.Workers), s.cfg.Outbox), counters: s.counters},
	}
}

// load reads what a leader needs. It retries until it has it or ctx ends.
func (t *term) load(ctx context.Context) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := t.tryLoad(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			t.cfg.Log.Warn("cannot read the jobs, trying again", "resource", t.cfg.Resource, "error", err)
		}
		if !wait.For(ctx, pause) {
			return ctx.Err()
		}
	}
}

func (t *term) tryLoad(ctx context.Context) error {
	var wait sync.WaitGroup
	var cursorErr, fleetErr error
	wait.Go(func() { cursorErr = t.loadCursor(ctx) })
	wait.Go(func() { fleetErr = t.loadFleet(ctx) })
	err := t.loadWindow(ctx)
	wait.Wait()
	return errors.Join(err, cursorErr, fleetErr)
}

func (t *term) loadCursor(ctx context.Context) error {
	c, err := t.cfg.Ledger.Checkpoint(ctx, t.cfg.Resource, Checkpoint)
	if errors.Is(err, ledgerapi.ErrNotFound) {
		return nil
	}
	if err == nil {
		if err := json.Unmarshal(c.Value, &t.cursor); err != nil {
			t.cfg.Log.Error("cannot read the cursor, starting a new one", "checkpoint", Checkpoint, "error", err)
		}
	}
	return err
}

// loadFleet reads the standing orders of the workers. If there are none, the workers are only
// told who leads.
func (t *term) loadFleet(ctx context.Context) error {
	if len(t.cfg.Workers) == 0 {
		return nil
	}
	r, err := t.cfg.Ledger.Record(ctx, t.cfg.Resource, api.FleetRecord)
	if errors.Is(err, ledgerapi.ErrNotFound) {
		return nil
	}
	if err == nil {
		t.d.command(decodeFleet(r.Value, t.cfg.Log), r.Version)
	}
	return err
}

// loadWindow uses the preloaded window if no job was written since. Jobs that another leader has
// moved do no harm: see window.
func (t *term) loadWindow(ctx context.Context) error {
	head, err := t.look(ctx)
	if err != nil {
		return err
	}
	t.time.learn(head.NowMS)
	t.mu.Lock()
	warm := t.warm
	t.mu.Unlock()
	if warm != nil && warm.version == head.Version && warm.covered > head.NowMS+t.cfg.Tick.Milliseconds() {
		t.window = warm.clone()
		t.window.total = head.Total
		return nil
	}
	return t.reload(ctx, head.NowMS)
}

func (t *term) reload(ctx context.Context, now int64) error {
	w, page, err := t.read(ctx, now)
	if err != nil {
		return err
	}
	t.time.learn(page.NowMS)
	t.window = w
	return nil
}

// refresh ensures that the window has what the next tick needs.
func (t *term) refresh(ctx context.Context) error {
	head, err := t.look(ctx)
	if err != nil {
		return err
	}
	t.time.learn(head.NowMS)
	if t.window.version != head.Version || !t.window.enough(head.NowMS+2*t.cfg.Tick.Milliseconds(), t.cfg.Firings) {
		err = t.reload(ctx, head.NowMS)
	}
	t.counters.change(func(s *Status) {
		s.JobsPending, s.WindowJobs, s.WindowMS, s.Outbox = t.window.total, len(t.window.jobs), t.window.covered, t.d.outbox.Size()
	})
	return errors.Join(err, t.loadFleet(ctx))
}

// lookEvery is the least time between two reads of what has changed in the ledger.
const lookEvery = 50 * time.Millisecond

// ticks ticks until ctx ends or the term does.
func (t *term) ticks(ctx context.Context) error {
	timer := t.cfg.Clock.NewTimer()
	defer timer.Stop()
	looked, look, tryAgain := t.cfg.Clock.Now(), clock.Never, clock.Instant(0)
	for pause := time.Duration(0); ; {
		next := nextTick(t.time.now(), t.cursor.TickMS, t.cfg.Tick.Milliseconds())
		timer.Set(min(look, max(t.time.when(next), tryAgain)))
		select {
		case <-ctx.Done():
			return nil
		case <-t.changed:
			look = max(t.cfg.Clock.Now(), looked.Add(lookEvery))
			continue
		case <-timer.C():
		}
		var err error
		switch now := t.cfg.Clock.Now(); {
		case t.time.now() >= next && now >= tryAgain:
			if err = t.tick(ctx, next); err == nil {
				err = t.refresh(ctx)
			}
		case now >= look:
			err = t.refresh(ctx)
		default:
			continue // woken early
		}
		if fencedwriter.Stop(err) {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		looked, look = t.cfg.Clock.Now(), clock.Never
		tryAgain, pause = 0, min(max(2*pause, shortPause), time.Second)
		if err == nil {
			pause = 0
		} else {
			tryAgain = looked.Add(pause)
			t.window.stale = true
			t.cfg.Log.Warn("a tick failed, trying again", "resource", t.cfg.Resource, "instant_ms", next, "error", err)
		}
		t.counters.change(func(s *Status) {
			if s.Error = ""; err != nil {
				s.Error = err.Error()
			}
		})
	}
}

// tick writes one tick and what belongs to it.
func (t *term) tick(ctx context.Context, at int64) error {
	if t.window.stale {
		if err := t.reload(ctx, t.time.now()); err != nil {
			return err
		}
	}
	fires := t.plan()
	cursor := t.cursor
	cursor.TickMS, cursor.Ticks = at, cursor.Ticks+1
	cursor.Missed += missedTicks(t.cursor.TickMS, at, t.cfg.Tick.Milliseconds())
	payload := json.RawMessage(fmt.Sprintf(`{"at_ms":%d,"firings":%d}`, at, len(fires)))
	answer, err := t.write(ctx, cursor, fires, ledgerapi.Write{Tick: &ledgerapi.TickWrite{Key: fmt.Sprint("tick-", at), Payload: payload}})
	if err != nil {
		return err
	}
	if answer.Outcomes[1].Tick == nil {
		return fmt.Errorf("%w: the ledger answered another write", ledgerapi.ErrUnknown)
	}
	t.counters.change(func(s *Status) {
		s.Tick, s.TickMS, s.TickLateMS, s.TicksMissed = answer.Outcomes[1].Tick.N, at, answer.AtMS-at, cursor.Missed
	})
	if t.cfg.Metrics.Tick != nil {
		t.cfg.Metrics.Tick(time.Duration(answer.AtMS-at) * time.Millisecond)
	}
	if t.window.stale {
		// Another leader had moved jobs since the window was read. Jobs that are due now must not
		// wait for the next tick.
		if err := t.reload(ctx, answer.AtMS); err != nil {
			return err
		}
		if fires = t.plan(); len(fires) > 0 {
			if _, err := t.write(ctx, t.cursor, fires); err != nil {
				return err
			}
		}
	}
	return t.recordDelivered(ctx)
}

func (t *term) plan() []planned {
	return t.window.plan(t.time.now(), t.cfg.Grace.Milliseconds(), t.cfg.Firings)
}

// write writes the cursor, the firings, more, and the deliveries, and updates the state
// accordingly.
func (t *term) write(ctx context.Context, cursor Cursor, fires []planned, more ...ledgerapi.Write) (ledgerapi.Answer, error) {
	made := cursor
	for _, f := range fires {
		if f.write.Skip {
			made.Skipped++
		} else {
			made.Fired++
		}
	}
	value, err := json.Marshal(made)
	if err != nil {
		return ledgerapi.Answer{}, err
	}
	writes := append([]ledgerapi.Write{{Checkpoint: &ledgerapi.CheckpointWrite{Name: Checkpoint, Value: value}}}, more...)
	first := len(writes)
	for i := range fires {
		writes = append(writes, ledgerapi.Write{Fire: &fires[i].write})
	}
	delivered := t.d.outbox.Unrecorded(ledgerapi.MaxWrites - len(writes))
	for i := range delivered {
		writes = append(writes, ledgerapi.Write{Delivered: &delivered[i]})
	}
	answer, err := t.w.Write(ctx, writes...)
	if err == nil && len(answer.Outcomes) != len(writes) {
		err = fmt.Errorf("%w: the ledger answered %d of %d writes", ledgerapi.ErrUnknown, len(answer.Outcomes), len(writes))
	}
	if errors.Is(err, ledgerapi.ErrUnknown) {
		// If the write was made, the firings are pending in the ledger and will be found there.
		t.d.outbox.SetMore(true)
	}
	if err != nil {
		return answer, err
	}
	t.time.learn(answer.AtMS)
	t.d.outbox.Recorded(len(delivered))
	made.Fired -= t.fired(fires, answer.Outcomes[first:], answer.AtMS)
	t.cursor = made
	return answer, nil
}

// fired updates the window, queues the firings for delivery, and returns how many had been fired
// by another leader.
func (t *term) fired(fires []planned, outcomes []ledgerapi.Outcome, at int64) (not uint64) {
	var send []*outbox.Firing
	var late int64
	var now Status
	for i, f := range fires {
		var o ledgerapi.FireOutcome
		if outcomes[i].Fire != nil {
			o = *outcomes[i].Fire
		}
		if made := t.window.apply(f, o); made != nil {
			send = append(send, made)
		}
		switch {
		case o.Moved:
			now.Moved++
		case o.Duplicate:
			now.Duplicates++
		case f.wrong != nil:
			now.Unreadable++
			t.cfg.Log.Error("cannot read the schedule of a job, postponing it for an hour", "job", f.job.Key, "error", f.wrong)
		case f.write.Skip:
			now.Skipped++
			if t.cfg.Metrics.Skipped != nil {
				t.cfg.Metrics.Skipped()
			}
		default:
			now.Fired++
			late = max(late, at-f.write.AtMS)
			if t.cfg.Metrics.Fired != nil {
				t.cfg.Metrics.Fired(time.Duration(at-f.write.AtMS) * time.Millisecond)
			}
		}
		if !f.write.Skip && (o.Moved || o.Duplicate) {
			not++
		}
	}
	t.d.outbox.Offer(send)
	if now.Duplicates > 0 {
		t.d.outbox.SetMore(true) // they may be pending
	}
	t.counters.change(func(s *Status) {
		s.Fired, s.Moved, s.Duplicates = s.Fired+now.Fired, s.Moved+now.Moved, s.Duplicates+now.Duplicates
		s.Skipped, s.Unreadable = s.Skipped+now.Skipped, s.Unreadable+now.Unreadable
		s.LateMS, s.LateMaxMS = late, max(s.LateMaxMS, late)
	})
	return not
}

// ledgerTime is the ledger's wall clock, advanced by ours. It starts when the answer arrives, so
// it is late rather than early, and nothing is fired early.
type ledgerTime struct {
	clock clock.Clock
	ms    int64
	at    clock.Instant
}

func (l *ledgerTime) learn(ms int64) {
	if ms > 0 {
		l.ms, l.at = ms, l.clock.Now()
	}
}

func (l *ledgerTime) now() int64 { return l.ms + l.clock.Now().Sub(l.at).Milliseconds() }

// when is the instant of our clock at which the ledger's clock shows ms.
func (l *ledgerTime) when(ms int64) clock.Instant {
	return l.at.Add(time.Duration(ms-l.ms) * time.Millisecond)
}
