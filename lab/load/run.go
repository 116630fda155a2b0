package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/client"
)

// run is one run of the load.
type run struct {
	cfg   Config
	route *route
	meter *meter
	// now is the host's clock if calls are recorded, and a cheaper one otherwise.
	now     func() clock.Instant
	begin   clock.Instant
	end     clock.Instant
	tickets atomic.Int64
}

// Run makes the calls and returns the results. It ends after cfg.For or cfg.Count calls, or
// when ctx ends, and waits for the answers to open calls. An error means that nothing was
// measured.
func Run(ctx context.Context, cfg Config) (Report, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return Report{}, err
	}
	fleet, err := client.New(client.Config{URLs: cfg.URLs, Timeout: cfg.Timeout, Patience: cfg.Patience})
	if err != nil {
		return Report{}, err
	}
	defer fleet.Close()
	// The time counts from when the leader is known.
	first, cancel := context.WithTimeoutCause(ctx, cfg.Patience, fmt.Errorf("nobody led for %v", cfg.Patience))
	l, err := fleet.Leader(first)
	cancel()
	if err != nil {
		return Report{}, fmt.Errorf("no leader to call: %w", err)
	}
	host, err := hostOf(l.URL)
	if err != nil {
		return Report{}, err
	}
	r := &run{cfg: cfg, route: newRoute(fleet, cfg.N), meter: newMeter(), now: clock.System().Now}
	r.meter.token.Store(uint64(l.Token))
	r.route.set(host, l.ID)
	if cfg.Calls == nil {
		began := time.Now()
		r.now = func() clock.Instant { return clock.Instant(time.Since(began)) }
	}
	r.begin = r.now()
	r.end = r.begin.Add(cfg.For)
	return r.all(ctx)
}

func (r *run) all(ctx context.Context) (Report, error) {
	// Open calls may still be answered at the end, but do not look for a leader.
	ctx, stop := context.WithTimeout(ctx, r.cfg.For+r.cfg.Timeout)
	defer stop()
	var workers, others sync.WaitGroup
	others.Go(func() { r.route.seek(ctx) })
	others.Go(func() { r.narrate(ctx) })
	failed := make(chan error, r.cfg.Connections)
	for i := range r.cfg.Connections {
		workers.Go(func() {
			w := &worker{run: r, n: i, dialer: net.Dialer{Timeout: r.cfg.Timeout}}
			failed <- w.work(ctx)
		})
	}
	workers.Wait()
	took := r.now().Sub(r.begin)
	stop()
	others.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			return Report{}, err // an incomplete history proves nothing
		}
	}
	return r.meter.report(r.cfg, took, r.route), nil
}

// narrate reports progress every second.
func (r *run) narrate(ctx context.Context) {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	last := r.begin
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		part, ids := r.meter.collect()
		now := r.now()
		took := now.Sub(last).Seconds()
		last = now
		if r.cfg.Progress == nil || took <= 0 {
			continue
		}
		leader, _ := r.route.leader()
		m := r.meter
		r.cfg.Progress(Progress{
			At: now.Sub(r.begin), Calls: float64(part.TotalCount()) / took, IDs: float64(ids) / took,
			P50: quantile(part, 50), P99: quantile(part, 99),
			Unknown: m.unknown.Load(), Errors: m.unknown.Load() + m.gaveUp.Load() + m.refused.Load(),
			Leader: leader, Token: m.token.Load(),
		})
	}
}

// ticket returns when the next call is due; false: there is none.
func (r *run) ticket() (due clock.Instant, ok bool) {
	i := r.tickets.Add(1) - 1
	if r.cfg.Count > 0 && i >= r.cfg.Count {
		return 0, false
	}
	if due = r.now(); r.cfg.Rate > 0 {
		due = r.begin + clock.Instant(float64(i)/r.cfg.Rate*float64(time.Second))
	}
	return due, due < r.end
}

// worker is one connection.
type worker struct {
	*run
	n      int
	dialer net.Dialer
	wire   *wire
	at     *target // the node that wire is connected to

	token, seq uint64 // of the last answer
	// doubt is a node that did not answer. It may be paused, so it is called again only when
	// it was found to lead.
	doubt *target
}

func (w *worker) work(ctx context.Context) error {
	sleep := time.NewTimer(0)
	defer sleep.Stop()
	defer w.hangUp()
	for ctx.Err() == nil {
		due, ok := w.ticket()
		if !ok {
			break
		}
		if wait := due.Sub(w.now()); wait > 0 && w.cfg.Rate > 0 {
			sleep.Reset(wait)
			select {
			case <-ctx.Done():
				return nil
			case <-sleep.C:
			}
		}
		if err := w.call(ctx, due); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) hangUp() {
	if w.wire != nil {
		w.wire.close()
		w.wire = nil
	}
}

// call makes one call. It tries again if the call had no effect.
func (w *worker) call(ctx context.Context, due clock.Instant) error {
	to := w.route.current()
	var patience <-chan time.Time // most calls need none
	hops := 0
	if to == w.doubt {
		patience = time.After(w.cfg.Patience)
		if to = w.route.newer(ctx, to, patience); to == nil {
			w.meter.gaveUp.Add(1)
			return w.failed(due, nil, "no leader was found in time", false)
		}
	}
	for try := 0; ; try++ {
		start := w.now()
		if try == 0 && start.Sub(due) > time.Millisecond {
			w.meter.late.Add(1)
		}
		reply, err := w.try(to)
		if err == nil && reply.status == http.StatusOK {
			return w.answered(due, start, to, reply.body)
		}
		next := to
		switch verdict(reply, err) {
		case unknown:
			w.hangUp()
			w.doubt = to
			w.meter.unknown.Add(1)
			w.meter.noted("the outcome of a call is unknown: " + why(reply, err))
			return w.failed(start, to, why(reply, err), true)
		case refused:
			w.meter.refused.Add(1)
			w.meter.noted(why(reply, err))
			return w.failed(start, to, why(reply, err), false)
		case elsewhere:
			// Two nodes may name each other.
			if hops++; hops <= 2 {
				next = w.route.follow(to, reply.location, text(reply.body, `"leader":`))
			}
		case tryAgain:
			hops = 0
		}
		w.meter.again.Add(1)
		if next == to || next == nil {
			if patience == nil {
				patience = time.After(w.cfg.Patience)
			}
			if next = w.route.newer(ctx, to, patience); next == nil {
				w.meter.gaveUp.Add(1)
				return w.failed(start, nil, "no leader was found in time", false)
			}
			hops = 0
		}
		to = next
	}
}

func (w *worker) try(to *target) (reply, error) {
	if w.wire == nil || w.at.host != to.host {
		w.hangUp()
		wire, err := dial(&w.dialer, to.host)
		if err != nil {
			return reply{}, errNotSent
		}
		w.meter.dials.Add(1)
		w.wire = wire
	}
	w.at = to
	r, err := w.wire.call(to.req, w.cfg.Timeout)
	if err != nil || r.last {
		w.hangUp()
	}
	return r, err
}

// answered records an answer.
func (w *worker) answered(due, start clock.Instant, to *target, body []byte) error {
	end := w.now()
	token, first, last := number(body, `"token":`), number(body, `"seq":`), number(body, `"last":`)
	last = max(first, last)
	if first == 0 || token == 0 {
		w.meter.refused.Add(1)
		w.meter.noted("an answer without numbers: " + string(body))
		return w.failed(start, to, "an answer without numbers", true)
	}
	if !w.cfg.Bare && (token < w.token || first <= w.seq) {
		w.meter.disordered.Add(1)
	}
	if token > w.token && token > w.meter.token.Load() {
		w.meter.token.Store(token)
	}
	w.token, w.seq = token, last
	w.meter.answered(w.n, end.Sub(due), last-first+1)
	if w.cfg.Calls == nil {
		return nil
	}
	return w.cfg.Calls.Write(history.Call{Client: w.name(), Node: to.id, Start: start, End: end, Token: fence.Token(token), First: first, Last: last})
}

// failed records a call that got no numbers. If its outcome is unknown it may have taken
// some.
func (w *worker) failed(start clock.Instant, to *target, why string, unknown bool) error {
	if w.cfg.Calls == nil {
		return nil
	}
	c := history.Call{Client: w.name(), Start: start, End: w.now(), Error: why, Unknown: unknown}
	if to != nil {
		c.Node = to.id
	}
	return w.cfg.Calls.Write(c)
}

func (w *worker) name() string { return fmt.Sprint(w.cfg.Name, w.n) }

type outcome int

const (
	unknown outcome = iota
	refused
	elsewhere
	tryAgain
)

// verdict is the rule of package client: a call is repeated only if it had no effect.
func verdict(r reply, err error) outcome {
	switch {
	case errors.Is(err, errNotSent):
		return tryAgain
	case err != nil:
		return unknown
	case r.status == http.StatusConflict && text(r.body, `"code":`) == api.CodeNotLeader:
		return elsewhere
	case r.status == http.StatusServiceUnavailable || r.status == http.StatusTooManyRequests:
		if text(r.body, `"code":`) != api.CodeOutcomeUnknown && retryable(r.body) {
			return tryAgain
		}
		return unknown
	case r.status >= 400 && r.status < 500:
		return refused
	}
	return unknown
}

func why(r reply, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", r.status, text(r.body, `"detail":`))
}
