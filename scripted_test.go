package tenure_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/elector"
	"github.com/tenurehq/tenure/fence"
)

// stopwatch is a clock on package time, which is virtual in a bubble.
type stopwatch struct{ start time.Time }

func (c stopwatch) Now() clock.Instant { return clock.Instant(time.Since(c.start)) }

func (c stopwatch) NewTimer() clock.Timer { return clock.NewRuntimeTimer(c) }

// scriptedElector elects nobody: it hands out terms as the test says, one per
// campaign, with tokens from 1, and writes down what becomes of them.
type scriptedElector struct {
	clock   clock.Clock
	trusted time.Duration        // how long each term is trusted
	prepare func(*scriptedGrant) // before a term is handed out
	last    int                  // the campaign after this many terms fails with over

	mu     sync.Mutex
	grants []*scriptedGrant
	at     []time.Duration // when each campaign won
	begin  time.Time
}

var errOver = errors.New("the script is over")

func newScriptedElector(terms int) *scriptedElector {
	now := time.Now()
	return &scriptedElector{clock: stopwatch{now}, begin: now, trusted: time.Hour, last: terms}
}

func (e *scriptedElector) Campaign(ctx context.Context) (*tenure.Term, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.grants) == e.last {
		return nil, errOver
	}
	g := e.grant(fence.Token(len(e.grants) + 1))
	e.grants = append(e.grants, g)
	e.at = append(e.at, time.Since(e.begin))
	if e.prepare != nil {
		e.prepare(g)
	}
	return g.term, nil
}

func (e *scriptedElector) grant(token fence.Token) *scriptedGrant {
	g := &scriptedGrant{trust: elector.NewTrust(e.clock), clock: e.clock}
	g.extend(e.trusted)
	g.term, g.end = elector.NewTerm(elector.TermConfig{
		Group: "g", Token: token, Deployment: "d", Candidate: tenure.Candidate{ID: "a"}, Trust: g.trust, Grant: g,
	})
	return g
}

func (e *scriptedElector) Leader(context.Context) (tenure.Leader, error) {
	return tenure.Leader{}, errors.New("not in the script")
}

func (e *scriptedElector) Leaders(context.Context) iter.Seq2[tenure.Leader, error] {
	return func(func(tenure.Leader, error) bool) {}
}

// scriptedGrant is the engine's side of a scripted term.
type scriptedGrant struct {
	clock clock.Clock
	trust *elector.Trust
	term  *tenure.Term
	end   func(error) bool

	successor  error         // what Successor answers
	releaseErr error         // what Release answers
	hang       bool          // Release waits for its context
	slow       time.Duration // Ended takes that long
	suspicion  []error       // what Suspect answers, one after the other; then nil

	mu        sync.Mutex
	ended     []error
	asked     []string
	released  []string
	suspected []fence.Token
	tooLate   bool // a release came with a context that had ended
}

func (g *scriptedGrant) extend(d time.Duration) { g.trust.Set(g.clock.Now().Add(d)) }

func (g *scriptedGrant) Ended(cause error) {
	time.Sleep(g.slow)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = append(g.ended, cause)
}

func (g *scriptedGrant) Successor(_ context.Context, candidate string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, candidate)
	return g.successor
}

func (g *scriptedGrant) Suspect(_ context.Context, seen fence.Token) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.suspected = append(g.suspected, seen)
	if len(g.suspicion) == 0 {
		return nil
	}
	err := g.suspicion[0]
	g.suspicion = g.suspicion[1:]
	return err
}

func (g *scriptedGrant) Release(ctx context.Context, candidate string) error {
	g.mu.Lock()
	g.released = append(g.released, candidate)
	g.tooLate = g.tooLate || ctx.Err() != nil
	g.mu.Unlock()
	if g.hang {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return g.releaseErr
}

// told returns what the holder's side said: the causes of the end, and to whom
// the group was released.
func (g *scriptedGrant) told() (ended []error, released []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]error(nil), g.ended...), append([]string(nil), g.released...)
}
