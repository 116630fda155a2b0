// Package pact decides until when a leader may trust its Raft term, and until when a
// follower votes for nobody else. It knows no Raft library: only terms, votes, messages
// and their times.
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

// Pact is the agreement between a leader and its followers, both sides of it. A follower
// that answers a leader's message is patient for one Heartbeat: it votes for nobody else.
// So a leader that a quorum answered may trust its term for that long, counted from the
// sending, less drift and margin. Raft does most of this; Pact closes the gaps (see the
// manual of package raft). It uses one clock, because trust must not depend on the order
// in which two goroutines of a library run.
//
// I1: while until is in the future, this node gives no vote.
// I2: this node sends no answer to a leader of term t while it decides on a vote in a
// later term, nor after it voted in one, for another or for itself.
// I3: until never grows for a term that was given up.
type Pact struct {
	Config

	mu sync.Mutex

	// The follower's side.
	patient clock.Instant // until when it votes for nobody but leader
	leader  string
	asked   uint64 // the term of the vote that is being decided, or 0
	voted   uint64 // the highest term in which it gave a vote, to another or itself
	handed  uint64 // the term whose leader told it to take over

	// The leader's side.
	term      uint64                   // the newest Raft term in which a follower answered
	sent      map[string]clock.Instant // by peer: send time of the newest message that the peer answered
	committed clock.Instant            // propose time of the newest committed entry
	until     clock.Instant            // the end of trust
	trust     *elector.Trust           // of the term that is held
	givenUp   uint64                   // terms up to this are never trusted again
	silenced  uint64                   // terms up to this send nothing more
	handing   uint64                   // the term in which it hands over
	answered  chan struct{}            // closed at the next answer
}

// Config is what a pact is made of.
type Config struct {
	Clock     clock.Clock
	Self      string
	Heartbeat time.Duration // how long a follower is patient
	Window    time.Duration // how long a leader trusts after a message; less than Heartbeat
	Stall     time.Duration // how long a leader trusts after it proposed a committed entry
	// Voters returns those of the newest configuration, committed or not.
	Voters func() []string
}

// New returns a patient Pact: the node does not know whom it answered before its start.
func New(cfg Config) *Pact {
	return &Pact{Config: cfg, patient: cfg.Clock.Now().Add(cfg.Heartbeat), answered: make(chan struct{})}
}

// MayVote returns nil if Raft may see a request for a vote, and the reason otherwise. After
// nil, unless pre, the caller must call Decided.
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

// Decided records whether the vote was granted.
func (p *Pact) Decided(term uint64, granted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = 0
	if granted {
		p.voted = max(p.voted, term)
	}
}

// Answers reports whether the node may tell a leader that its message was accepted, and
// then renews the patience. If false, the answer must not be sent: this node votes or has
// voted in a later term, and the leader would extend its trust.
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

// MayAsk returns nil if this node may ask others for their votes, and the reason otherwise.
// Unless pre, it has then voted for itself and no longer answers the old leader.
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

// TakeOver records that the leader of the term gave it up for good. Votes may override
// patience only in the next term: a late message must not replace a newer leader.
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

// Acknowledged records that the peer accepted a message of the term, and when it was sent.
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

// Proved records that an entry of the term was committed, and when it was proposed.
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

// Begin returns the trust of a term that begins in the Raft term, with the time at which
// its first entry was proposed. It returns nil if the term cannot be trusted now.
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

// reckon computes until.
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

// lease returns until when a quorum is patient. It reads the voters after the answers: a
// follower with newer voters got them from this leader, in a later message.
func (p *Pact) lease() clock.Instant {
	at := p.heard()
	if at == clock.Never || at == 0 {
		return at
	}
	return at.Add(p.Window)
}

// heard returns the latest time such that a quorum answered messages sent then or later:
// 0 if there is none, Never if this node is the only voter.
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

// Confirmed reports whether a quorum accepted messages of the term that were sent at since
// or later. The channel is closed at the next answer.
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

// Abdicate gives the Raft term up for good and sends nothing more in it, so that its
// followers elect another leader even if Raft on this node hangs on its disk.
func (p *Pact) Abdicate(term uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.giveUp(term)
	p.silenced = max(p.silenced, term)
}

// Reclaim makes a Raft term that was given up usable again. Only the only voter may call
// it: nobody else can have been elected since.
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

// Silent reports whether this node must send nothing in the term.
func (p *Pact) Silent(term uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return term <= p.silenced
}

// HandsOver returns the term of the last HandOver, or 0.
func (p *Pact) HandsOver() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.handing
}

// Stalled reports whether no entry was committed in time, although a quorum may answer.
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

// Newest returns the peer that answered the newest message.
func (p *Pact) Newest(peers []string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.MaxFunc(peers, func(a, b string) int { return cmp.Compare(p.sent[a], p.sent[b]) })
}
