// Package pact keeps the promise between a leader and its followers that trust
// rests on. It knows no Raft library: only terms, votes, messages and their times.
package pact

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/elector"
)

// Pact is the promise between a leader and its followers, both sides of it. A
// follower that answers a leader's message helps nobody else to lead for one
// Heartbeat; so a leader that was answered by a quorum may believe for that long,
// counted from the sending, less drift and margin. Raft itself keeps most of the
// promise; the pact closes the gaps (see the manual of package raft), on one clock, because trust
// must not hang on the order in which two goroutines of a library run.
//
// I1: while until is in the future, this node gives no vote.
// I2: no answer to a leader of term t leaves this node while it decides on a vote
// in a later term, nor after it gave one, to another or to itself.
// I3: until never grows for a term that was given up.
type Pact struct {
	Config

	mu sync.Mutex

	// The follower's side.
	patient clock.Instant // until when it helps nobody but leader
	leader  string
	asked   uint64 // the term of the vote that is being decided, or 0
	voted   uint64 // the highest term in which it gave a vote, to another or itself
	handed  uint64 // the term whose leader told it to take over

	// The leader's side.
	term      uint64                   // the newest Raft term in which it was answered
	sent      map[string]clock.Instant // by peer: send time of the newest message that the peer answered
	committed clock.Instant            // when the newest entry that was committed was proposed
	until     clock.Instant
	trust     *elector.Trust // of the term that is held
	givenUp   uint64         // terms up to this are never trusted again
	silenced  uint64         // terms up to this send nothing more
	handing   uint64         // the term in which it hands over
	answered  chan struct{}  // closed at the next answer
}

// Config is what a pact is made of.
type Config struct {
	Clock     clock.Clock
	Self      string
	Heartbeat time.Duration // a follower's patience
	Window    time.Duration // a leader's trust after a message: less than that
	Stall     time.Duration // and after an entry that was committed
	// Voters are those of the newest configuration, committed or not.
	Voters func() []string
}

// New begins with patience: whom this node answered before it was started it does
// not know any more.
func New(cfg Config) *Pact {
	return &Pact{Config: cfg, patient: cfg.Clock.Now().Add(cfg.Heartbeat), answered: make(chan struct{})}
}

// MayVote decides whether Raft is shown a request for a vote, and if not, why.
// Each real one that it is shown must be followed by decided.
func (p *Pact) MayVote(candidate string, term uint64, transfer, pre bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.Clock.Now()
	switch {
	case p.until > now:
		return fmt.Errorf("%s leads in Raft term %d and can trust it for %v", p.Self, p.term, p.until.Sub(now))
	case p.patient > now && (candidate != p.leader || candidate == "") && !transfer:
		return fmt.Errorf("%s supports leader %q for another %v", p.Self, p.leader, p.patient.Sub(now))
	}
	if !pre {
		p.asked = term
	}
	return nil
}

// Decided says what became of the vote.
func (p *Pact) Decided(term uint64, granted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = 0
	if granted {
		p.voted = max(p.voted, term)
	}
}

// Answers is asked before a leader is answered that its message was accepted. If
// it is false, the answer must not be sent: a vote against that leader is on its
// way, and the leader would take the answer for another spell of patience.
func (p *Pact) Answers(leader string, term uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked > term || p.voted > term {
		return false
	}
	p.leader, p.patient = leader, p.Clock.Now().Add(p.Heartbeat)
	return true
}

// Voted returns the highest term in which this node gave a vote.
func (p *Pact) Voted() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.voted
}

// MayAsk decides whether this node may ask others for their votes. Whoever asks
// for real has voted for itself: an answer to the old leader that is still on its
// way must not be sent any more.
func (p *Pact) MayAsk(term uint64, transfer, pre bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := p.patient.Sub(p.Clock.Now()); left > 0 && !(transfer && term == p.handed+1) {
		return fmt.Errorf("%s supports leader %q for another %v", p.Self, p.leader, left)
	}
	if !pre {
		p.voted = max(p.voted, term)
	}
	return nil
}

// Patience returns until when this node is patient, and with whom.
func (p *Pact) Patience() (until clock.Instant, leader string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.patient, p.leader
}

// TakeOver is told by the leader of the term that it gave it up for good. Only
// the term after it may be taken by a vote that overrides patience: a message
// that comes late must not unseat a leader who knows nothing of it.
func (p *Pact) TakeOver(term uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handed = max(p.handed, term)
}

// Privileged reports whether votes in the term may override patience.
func (p *Pact) Privileged(term uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.handed > 0 && term == p.handed+1
}

// Acknowledged takes down that the peer accepted a message of the term that was
// sent at the instant.
func (p *Pact) Acknowledged(peer string, term uint64, sent clock.Instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if term < p.term {
		return
	}
	p.enter(term)
	p.sent[peer] = max(p.sent[peer], sent)
	p.reckon()
	close(p.answered)
	p.answered = make(chan struct{})
}

// Proved takes down that an entry was committed which was proposed in the term at
// the instant.
func (p *Pact) Proved(term uint64, proposed clock.Instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if term == p.term && p.trust != nil {
		p.committed = max(p.committed, proposed)
		p.reckon()
	}
}

func (p *Pact) enter(term uint64) {
	if term > p.term {
		p.quit()
		p.term, p.sent = term, map[string]clock.Instant{}
	}
}

// Begin returns the trust of a term that begins in the Raft term with an entry
// that was proposed at the instant, or nil if there is none to be had.
func (p *Pact) Begin(term uint64, proposed clock.Instant) *elector.Trust {
	p.mu.Lock()
	defer p.mu.Unlock()
	if term < p.term {
		return nil
	}
	p.enter(term)
	p.quit()
	p.trust, p.committed = elector.NewTrust(p.Clock), proposed
	p.reckon()
	if p.until <= p.Clock.Now() {
		p.quit()
	}
	return p.trust
}

// reckon computes until when the leader may believe.
func (p *Pact) reckon() {
	until := clock.Instant(0)
	if p.trust != nil && p.term > p.givenUp && p.term >= p.voted {
		until = min(p.lease(), p.committed.Add(p.Stall))
	}
	if p.asked > p.term {
		until = min(until, p.until)
	}
	p.until = until
	if p.trust != nil {
		p.trust.Set(until)
	}
}

// lease is until when a quorum is patient. The configuration is read after the
// Answers were: whoever knows a newer one has been sent it by this leader, later.
func (p *Pact) lease() clock.Instant {
	at := p.heard()
	if at == clock.Never || at == 0 {
		return at
	}
	return at.Add(p.Window)
}

// heard is when the message was sent that completed the newest quorum: 0 is
// none, Never that no others are needed.
func (p *Pact) heard() clock.Instant {
	voters := p.Voters()
	if !slices.Contains(voters, p.Self) {
		return 0
	}
	others := len(voters) / 2 // besides this node
	if others == 0 {
		return clock.Never
	}
	var sent []clock.Instant
	for _, v := range voters {
		if at, ok := p.sent[v]; ok && v != p.Self {
			sent = append(sent, at)
		}
	}
	if len(sent) < others {
		return 0
	}
	slices.Sort(sent)
	return sent[len(sent)-others]
}

// Confirmed reports whether a quorum has accepted messages of the term that were
// sent at or after the instant; if not yet, it returns what to wait for.
func (p *Pact) Confirmed(term uint64, since clock.Instant) (bool, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	heard := p.heard()
	return heard == clock.Never || p.term == term && heard >= since, p.answered
}

// Stop ends the trust of the term that is held. The Raft term may be used again.
func (p *Pact) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quit()
}

func (p *Pact) quit() {
	if p.trust != nil {
		p.trust.Set(0)
	}
	p.trust, p.until, p.committed = nil, 0, 0
}

// Usable reports whether a term may begin in the Raft term.
func (p *Pact) Usable(term uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return term > p.givenUp && term >= p.voted
}

// HandOver gives the Raft term up for good, so that it can be handed over.
func (p *Pact) HandOver(term uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.giveUp(term)
	p.handing = term
}

// Abdicate gives the Raft term up for good and silences it: its followers lose
// their patience and elect another, even if Raft here hangs on its disk.
func (p *Pact) Abdicate(term uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.giveUp(term)
	p.silenced = max(p.silenced, term)
}

// Reclaim takes back a Raft term that was given up. Only for whoever is the only
// voter: nobody else can have been elected on the strength of it.
func (p *Pact) Reclaim(term uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.givenUp == term {
		p.givenUp--
	}
	if p.silenced == term {
		p.silenced--
	}
}

func (p *Pact) giveUp(term uint64) {
	p.givenUp = max(p.givenUp, term)
	if p.term <= p.givenUp {
		p.quit()
	}
}

// Silent reports whether nothing may be sent in the term.
func (p *Pact) Silent(term uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return term <= p.silenced
}

// HandsOver returns the term that is being handed over, or 0.
func (p *Pact) HandsOver() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.handing
}

// Stalled reports whether commits, and not the quorum, are what trust waits for.
func (p *Pact) Stalled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.committed != 0 && p.committed.Add(p.Stall) <= p.Clock.Now()
}

// Ends returns until when the term that is held can be trusted.
func (p *Pact) Ends() clock.Instant {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.until
}

// Newest returns who of the peers answered the newest message.
func (p *Pact) Newest(peers []string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.MaxFunc(peers, func(a, b string) int { return cmp.Compare(p.sent[a], p.sent[b]) })
}
