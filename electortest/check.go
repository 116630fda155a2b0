package electortest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/suite"
)

// testCase tests one claim.
type testCase struct {
	name     string
	claim    string
	transfer bool // needs Engine.Transfer
	run      func(*check)
}

// check is one run of a case. It collects failures instead of reporting them, so that the
// tests of this package can require an engine to fail.
type check struct {
	suite.Check
	Engine
	t     *testing.T // for Start
	group string
	ctx   context.Context // ends with the case

	background sync.WaitGroup

	mu        sync.Mutex
	processes []*candidate
	terms     []*tenure.Term
	highest   fence.Token
}

// attempts is how often a case runs if it fails while the machine is stalled.
const attempts = 3

// examine runs a case and returns its failures.
func examine(t *testing.T, e Engine, tc testCase) []error {
	var failures []error
	for range attempts {
		watch := watchStalls()
		failures = once(t, e, tc)
		stall := watch.stop()
		if len(failures) == 0 || stall < e.Lease/5 {
			return failures
		}
		t.Logf("the machine was stalled for %v, so these failures do not count: %s", stall, errors.Join(failures...))
	}
	return append(failures, fmt.Errorf("inconclusive: the machine was stalled for a fifth of the lease, %d times in a row", attempts))
}

func once(t *testing.T, e Engine, tc testCase) []error {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &check{
		Engine: e, t: t, ctx: ctx,
		group: fmt.Sprintf("%s-%08x", strings.ReplaceAll(tc.name, " ", "-"), rand.Uint32()),
	}
	c.Observe(func() { tc.run(c) })
	c.end(cancel)
	return c.Wrong()
}

// end stops everything. It is a failure if something does not stop.
func (c *check) end(cancel context.CancelFunc) {
	cancel()
	for _, p := range c.processes {
		p.Resume()
		p.Heal()
	}
	ctx, done := context.WithTimeout(context.Background(), c.Failover)
	defer done()
	c.mu.Lock()
	terms := c.terms
	c.mu.Unlock()
	var closing sync.WaitGroup
	for _, t := range terms {
		// The case does not test whether this is confirmed.
		closing.Go(func() { _ = t.Resign(ctx) })
	}
	closing.Wait()
	for _, p := range c.processes {
		closing.Go(func() { _ = p.Close(ctx) })
	}
	closing.Wait()
	left := make(chan struct{})
	go func() { c.background.Wait(); close(left) }()
	select {
	case <-left:
	case <-time.After(c.Failover + 5*time.Second):
		c.Errorf("a campaign, a Lead or a watch still runs %v after its context ended", c.Failover+5*time.Second)
	}
}

// candidate is a process and its id.
type candidate struct {
	Process
	id string
}

func (c *check) start(id string) *candidate {
	p := &candidate{c.Start(c.t, c.group, id), id}
	c.processes = append(c.processes, p)
	return p
}

// note records the token of a new term. It must be larger than all tokens before it.
func (c *check) note(t *tenure.Term) {
	c.mu.Lock()
	highest := c.highest
	c.highest = max(c.highest, t.Token())
	c.mu.Unlock()
	if t.Token() <= highest {
		c.Errorf("token %d was granted to %q after token %d", t.Token(), t.Candidate().ID, highest)
	}
}

// campaign is a Campaign that runs in the background.
type campaign struct {
	c      *check
	by     string
	cancel context.CancelFunc
	done   chan struct{}

	// After done:
	term *tenure.Term
	err  error
	at   time.Time // when it returned
}

func (c *check) campaign(p *candidate) *campaign {
	ctx, cancel := context.WithCancel(c.ctx)
	w := &campaign{c: c, by: p.id, cancel: cancel, done: make(chan struct{})}
	c.background.Go(func() {
		defer close(w.done)
		w.term, w.err = p.Elector().Campaign(ctx)
		w.at = time.Now()
		if w.err == nil {
			c.note(w.term)
			c.mu.Lock()
			c.terms = append(c.terms, w.term)
			c.mu.Unlock()
		}
	})
	return w
}

// wins requires the campaign to be won in time.
func (w *campaign) wins(within time.Duration) *tenure.Term {
	select {
	case <-w.done:
	case <-time.After(within):
		w.c.Fatalf("%s has not won in %v", w.by, within)
	}
	if w.err != nil {
		w.c.Fatalf("the campaign of %s failed: %v", w.by, w.err)
	}
	return w.term
}

// waits requires the campaign not to be won for a while.
func (w *campaign) waits(d time.Duration) {
	select {
	case <-w.done:
		if w.err != nil {
			w.c.Fatalf("the campaign of %s failed: %v", w.by, w.err)
		}
		w.c.Fatalf("%s leads with token %d, and should be waiting", w.by, w.term.Token())
	case <-time.After(d):
	}
}

// refused requires the campaign to fail, because the work of an earlier term still runs.
func (w *campaign) refused() {
	select {
	case <-w.done:
	case <-time.After(w.c.Failover):
	}
	w.cancel()
	<-w.done
	if w.err == nil || errors.Is(w.err, context.Canceled) {
		w.c.Errorf("%s campaigns, though the work of its own earlier term has not returned", w.by)
	}
}

// win campaigns and requires that it leads.
func (c *check) win(p *candidate) *tenure.Term { return c.campaign(p).wins(c.Failover) }

func (c *check) resign(t *tenure.Term) {
	ctx, cancel := context.WithTimeout(c.ctx, c.Failover)
	defer cancel()
	if err := t.Resign(ctx); err != nil {
		c.Errorf("the resignation of token %d is not confirmed: %v", t.Token(), err)
	}
}

// returned resigns a term that has ended, which tells the process that its work has stopped.
func (c *check) returned(t *tenure.Term) {
	ctx, cancel := context.WithTimeout(c.ctx, c.Failover)
	defer cancel()
	_ = t.Resign(ctx)
}

// transfer hands over to a candidate that may not have joined yet.
func (c *check) transfer(t *tenure.Term, to string) {
	ctx, cancel := context.WithTimeout(c.ctx, c.Failover)
	defer cancel()
	for {
		err := t.TransferTo(ctx, to)
		switch {
		case err == nil:
			return
		case !errors.Is(err, tenure.ErrSuccessor) || t.Check() != nil || ctx.Err() != nil:
			c.Fatalf("the transfer of token %d to %q failed: %v", t.Token(), to, err)
		}
		time.Sleep(c.Lease / 50)
	}
}

// leads requires Check to pass.
func (c *check) leads(t *tenure.Term) {
	if err := t.Check(); err != nil {
		c.Fatalf("token %d should still lead: %v", t.Token(), err)
	}
}

// ends requires the term's context to end in time (0: to have ended), for one of the reasons,
// and Check to return the same.
func (c *check) ends(t *tenure.Term, within time.Duration, reasons ...error) {
	if within > 0 {
		select {
		case <-t.Context().Done():
		case <-time.After(within):
		}
	}
	if t.Context().Err() == nil {
		c.Fatalf("the context of token %d has not ended in %v", t.Token(), within)
	}
	c.over(t, context.Cause(t.Context()), reasons...)
	c.over(t, t.Check(), reasons...)
}

// over requires that err says that the term ended, for one of the reasons.
func (c *check) over(t *tenure.Term, err error, reasons ...error) {
	var ended *tenure.EndedError
	if !errors.As(err, &ended) || ended.Token != t.Token() || ended.Group != t.Group() {
		c.Errorf("the end of token %d is told as %v, which is not its EndedError", t.Token(), err)
		return
	}
	for _, r := range reasons {
		if errors.Is(err, r) {
			return
		}
	}
	c.Errorf("token %d: %v, want one of %v", t.Token(), err, reasons)
}

// leading is a Lead in the background.
type leading struct {
	c      *check
	cancel context.CancelFunc
	done   chan struct{}

	// After done:
	err      error
	panicked any
}

func (c *check) lead(p *candidate, work func(context.Context, *tenure.Term) error, opts ...tenure.Option) *leading {
	ctx, cancel := context.WithCancel(c.ctx)
	l := &leading{c: c, cancel: cancel, done: make(chan struct{})}
	opts = append([]tenure.Option{silent()}, opts...)
	c.background.Go(func() {
		defer close(l.done)
		defer func() { l.panicked = recover() }()
		l.err = tenure.Lead(ctx, p.Elector(), func(ctx context.Context, t *tenure.Term) error {
			c.note(t)
			return work(ctx, t)
		}, opts...)
	})
	return l
}

// returns requires Lead to have returned in time, by itself or by a panic.
func (l *leading) returns(within time.Duration) error {
	select {
	case <-l.done:
		return l.err
	case <-time.After(within):
		l.c.Fatalf("Lead has not returned in %v", within)
		return nil
	}
}

// receives requires a value in time.
func receives[T any](c *check, what string, from <-chan T, within time.Duration) T {
	select {
	case v := <-from:
		return v
	case <-time.After(within):
		c.Fatalf("%s: not in %v", what, within)
		panic("not reached")
	}
}

// silence requires that no value comes for a while.
func silence[T any](c *check, what string, from <-chan T, d time.Duration) {
	select {
	case <-from:
		c.Fatalf("%s", what)
	case <-time.After(d):
	}
}

// stalls measures the longest time for which the machine did not run this process.
type stalls struct {
	end   chan struct{}
	worst chan time.Duration
}

func watchStalls() stalls {
	const pace = 2 * time.Millisecond
	s := stalls{make(chan struct{}), make(chan time.Duration)}
	go func() {
		var worst time.Duration
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		for last := time.Now(); ; {
			select {
			case <-ticker.C:
				now := time.Now()
				worst = max(worst, now.Sub(last)-pace)
				last = now
			case <-s.end:
				s.worst <- worst
				return
			}
		}
	}()
	return s
}

func (s stalls) stop() time.Duration {
	close(s.end)
	return <-s.worst
}
