// Package elector is for those who write a tenure.Elector on an engine of their own: it
// makes the terms that Campaign returns. Packages lease and raft are written with it, and
// package electortest is the contract as tests.
package elector

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/termhook"
)

// Trust is until when a process may rely on what it holds. All terms of a session share
// one Trust, so a keep-alive costs the same for one group and for ten thousand.
type Trust struct {
	clock clock.Clock
	until atomic.Int64

	mu     sync.Mutex
	risk   chan struct{} // closed: at risk; nil: nobody has asked
	risked bool
}

// NewTrust returns a Trust that has already ended.
func NewTrust(c clock.Clock) *Trust { return &Trust{clock: c} }

// Set sets until when.
func (t *Trust) Set(until clock.Instant) { t.until.Store(int64(until)) }

// SetAtRisk says whether trust is about to end for lack of keep-alives.
func (t *Trust) SetAtRisk(risked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case risked == t.risked:
	case !risked:
		t.risk = nil
	case t.risk != nil:
		close(t.risk)
	}
	t.risked = risked
}

// AtRisk is what tenure.Term.AtRisk returns.
func (t *Trust) AtRisk() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.risk == nil {
		t.risk = make(chan struct{})
		if t.risked {
			close(t.risk)
		}
	}
	return t.risk
}

// Remaining is how long trust still lasts; zero or less means that it ended.
func (t *Trust) Remaining() time.Duration {
	return clock.Instant(t.until.Load()).Sub(t.clock.Now())
}

// Grant is the engine's side of a term.
type Grant interface {
	// Ended is told, once, that the term ended on the holder's side: by Resign,
	// TransferTo, or by a Check that found trust gone. It must not block.
	Ended(cause error)
	// Successor reports whether candidate could take over, tenure.ErrSuccessor if not.
	Successor(ctx context.Context, candidate string) error
	// Release gives the group up after work has returned, to the candidate or,
	// with "", to whoever is next in line.
	Release(ctx context.Context, candidate string) error
	// Suspect is called when a sink refused the seal of this term because it has
	// seen a token that is not below the term's. It asks the engine, linearizably,
	// whether the grant still stands. nil: it does not, another was granted since. If
	// it stands, the engine lost data: Suspect makes it grant nothing more, where it
	// can, and returns tenure.ErrDataLost. Any other error leaves the question open.
	Suspect(ctx context.Context, seen fence.Token) error
}

// TermConfig is what an engine knows when a term begins.
type TermConfig struct {
	Group      string
	Token      fence.Token
	Deployment string
	// Session is the digest of what the token was granted to (fence.SessionDigest): no
	// other grant has it, not even after the engine lost data.
	Session   string
	Candidate tenure.Candidate
	Trust     *Trust
	Grant     Grant
}

// NewTerm begins a term. The engine ends it with the returned function, which reports
// whether this call was the one that ended it.
func NewTerm(cfg TermConfig) (t *tenure.Term, end func(cause error) bool) {
	term, end := termhook.New(termhook.Config{
		Group: cfg.Group, Token: cfg.Token, Deployment: cfg.Deployment, Session: cfg.Session,
		Candidate: cfg.Candidate, Trust: cfg.Trust, Grant: cfg.Grant,
	})
	return term.(*tenure.Term), end
}
