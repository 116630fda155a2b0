package pact

import (
	"errors"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/elector"
)

// handClock is set by hand.
type handClock struct{ now clock.Instant }

func (c *handClock) Now() clock.Instant    { return c.now }
func (c *handClock) NewTimer() clock.Timer { return clock.NewRuntimeTimer(c) }
func (c *handClock) pass(d time.Duration)  { c.now = c.now.Add(d) }

// newTestPact is one of node a, among voters, long after its start. A Heartbeat is
// 100 ms, trust lasts 85 ms, Stall is a second.
func newTestPact(voters ...string) (*Pact, *handClock) {
	c := &handClock{now: 1000}
	p := New(Config{Clock: c, Self: "a", Heartbeat: 100 * time.Millisecond, Window: 85 * time.Millisecond, Stall: time.Second, Voters: func() []string { return voters }})
	c.pass(time.Hour)
	return p, c
}

// led lets the pact's node lead in Raft term 5, answered by b just now.
func led(t *testing.T, p *Pact) *elector.Trust {
	t.Helper()
	p.Acknowledged("b", 5, p.Clock.Now())
	trust := p.Begin(5, p.Clock.Now())
	if trust == nil {
		t.Fatal("no trust after a quorum answered")
	}
	return trust
}

// Trust is counted from when the message was sent that completed the newest
// quorum: not from the newest message, nor from the answer.
func TestTrustFromQuorum(t *testing.T) {
	p, c := newTestPact("a", "b", "c", "d", "e")
	start := c.now
	p.Acknowledged("b", 5, start)
	if p.Begin(5, start) != nil {
		t.Fatal("trust after two of five")
	}
	c.pass(10 * time.Millisecond)
	p.Acknowledged("c", 5, start.Add(4*time.Millisecond))
	trust := p.Begin(5, start)
	if trust == nil {
		t.Fatal("no trust after three of five")
	}
	const window = 85 * time.Millisecond
	for _, tt := range []struct {
		peer string
		sent time.Duration
		from time.Duration // the sending that counts
	}{
		{"", 0, 0},
		{"c", 20 * time.Millisecond, 0}, // still b's
		{"d", 30 * time.Millisecond, 20 * time.Millisecond}, // c's
		{"x", 60 * time.Millisecond, 20 * time.Millisecond}, // no voter
		{"b", 10 * time.Millisecond, 20 * time.Millisecond}, // older than c and d
		{"b", 40 * time.Millisecond, 30 * time.Millisecond}, // d's
		{"b", 35 * time.Millisecond, 30 * time.Millisecond}, // late answer to an old message
	} {
		if tt.peer != "" {
			p.Acknowledged(tt.peer, 5, start.Add(tt.sent))
		}
		if got, want := trust.Remaining(), start.Add(tt.from+window).Sub(c.now); got != want {
			t.Errorf("%s answered what was sent at %v: %v remain, want %v", tt.peer, tt.sent, got, want)
		}
	}
	// Answers in an older Raft term say nothing about this one.
	before := trust.Remaining()
	for _, peer := range []string{"b", "c", "d", "e"} {
		p.Acknowledged(peer, 4, c.now)
	}
	if trust.Remaining() != before {
		t.Error("answers of an older Raft term extend trust")
	}
	// A newer Raft term is another leadership: this trust is over.
	p.Acknowledged("b", 6, c.now)
	if trust.Remaining() > 0 {
		t.Error("trust outlives its Raft term")
	}
}

// A leader that commits nothing loses its trust after Stall, however many
// heartbeats are answered.
func TestTrustNeedsCommits(t *testing.T) {
	p, c := newTestPact("a", "b", "c")
	trust := led(t, p)
	for range 99 {
		c.pass(10 * time.Millisecond)
		p.Acknowledged("b", 5, c.now)
		if trust.Remaining() <= 0 {
			t.Fatal("trust ended early")
		}
	}
	c.pass(10 * time.Millisecond)
	p.Acknowledged("b", 5, c.now)
	if trust.Remaining() > 0 || !p.Stalled() {
		t.Error("trust goes on without a commit for a second")
	}
	p.Proved(4, c.now)
	if trust.Remaining() > 0 {
		t.Error("a commit of an older Raft term extends trust")
	}
	p.Proved(5, c.now)
	if trust.Remaining() <= 0 {
		t.Error("a commit does not extend trust")
	}
}

// Who is no voter any more, has no quorum, or is alone.
func TestTrustFollowsMembers(t *testing.T) {
	p, c := newTestPact("a", "b", "c")
	trust := led(t, p)
	p.Voters = func() []string { return []string{"a", "b", "c", "d", "e"} }
	p.Acknowledged("b", 5, c.now)
	if trust.Remaining() > 0 {
		t.Error("two of five are trusted")
	}
	p.Voters = func() []string { return []string{"b", "c", "d"} }
	p.Acknowledged("b", 5, c.now)
	p.Acknowledged("c", 5, c.now)
	if trust.Remaining() > 0 {
		t.Error("a leader that was removed trusts itself")
	}
	alone, ac := newTestPact("a")
	if trust := alone.Begin(5, ac.now); trust == nil || trust.Remaining() != time.Second {
		t.Errorf("a single node does not trust until its disk stalls: %v", trust)
	}
}

// I1: a node that trusts itself votes for nobody, not even if its own Raft would.
func TestLeaderGivesNoVote(t *testing.T) {
	p, c := newTestPact("a", "b", "c")
	trust := led(t, p)
	for _, transfer := range []bool{false, true} {
		if p.MayVote("c", 6, transfer, false) == nil {
			t.Errorf("it votes while it trusts itself (transfer: %v)", transfer)
		}
	}
	c.pass(84 * time.Millisecond)
	if p.MayVote("c", 6, false, false) == nil {
		t.Error("it votes in the last millisecond of its trust")
	}
	c.pass(time.Millisecond)
	if err := p.MayVote("c", 6, false, false); err != nil {
		t.Errorf("it does not vote when its trust has ended: %v", err)
	}
	// The vote is being decided: an answer that comes now must not revive trust.
	p.Acknowledged("b", 5, c.now)
	if trust.Remaining() > 0 {
		t.Error("trust is extended while a vote against it is decided")
	}
	p.Decided(6, false)
	p.Acknowledged("b", 5, c.now)
	if trust.Remaining() <= 0 {
		t.Error("a vote that was refused ended trust")
	}
	c.pass(time.Second)
	if err := p.MayVote("c", 7, false, false); err != nil {
		t.Fatal(err)
	}
	p.Decided(7, true)
	p.Acknowledged("b", 5, c.now)
	p.Proved(5, c.now)
	if trust.Remaining() > 0 || p.Usable(5) {
		t.Error("trust in a Raft term below the one it voted in")
	}
}

// A follower is patient with its leader for one Heartbeat after each answer, and
// after its start with whoever it was.
func TestPatience(t *testing.T) {
	c := &handClock{now: 1000}
	p := New(Config{Clock: c, Self: "a", Heartbeat: 100 * time.Millisecond, Voters: func() []string { return []string{"a", "b", "c"} }})
	c.pass(99 * time.Millisecond)
	for _, candidate := range []string{"b", "c", ""} {
		if p.MayVote(candidate, 2, false, false) == nil || p.MayVote(candidate, 2, false, true) == nil {
			t.Errorf("it votes for %q right after its start", candidate)
		}
	}
	if p.MayAsk(2, false, true) == nil {
		t.Error("it asks for votes right after its start")
	}
	c.pass(time.Millisecond)
	if err := errors.Join(p.MayVote("c", 2, false, true), p.MayAsk(2, false, true)); err != nil {
		t.Errorf("a Heartbeat after its start: %v", err)
	}
	if !p.Answers("b", 3) {
		t.Fatal("it does not answer its leader")
	}
	c.pass(99 * time.Millisecond)
	if p.MayVote("c", 4, false, false) == nil || p.MayVote("c", 4, false, true) == nil || p.MayAsk(4, false, true) == nil {
		t.Error("its patience is shorter than a Heartbeat")
	}
	if err := p.MayVote("b", 4, false, true); err != nil {
		t.Errorf("it is patient with its leader against its leader: %v", err)
	}
	if err := p.MayVote("c", 4, true, false); err != nil {
		t.Errorf("it does not vote for whom its leader handed over to: %v", err)
	}
	p.Decided(4, false)
	c.pass(time.Millisecond)
	if err := errors.Join(p.MayVote("c", 4, false, true), p.MayAsk(4, false, true)); err != nil {
		t.Errorf("after a Heartbeat: %v", err)
	}
}

// I2: while a vote is decided, and after it was given, a leader of an older term is
// not answered.
func TestNoAnswerDuringVote(t *testing.T) {
	p, c := newTestPact("a", "b", "c")
	if err := p.MayVote("c", 4, false, false); err != nil {
		t.Fatal(err)
	}
	if p.Answers("b", 3) {
		t.Error("the old leader is answered while a vote is decided")
	}
	if !p.Answers("c", 4) {
		t.Error("the new leader is not answered")
	}
	p.Decided(4, false)
	if !p.Answers("b", 3) {
		t.Error("the leader is not answered after a vote was refused")
	}
	_ = p.MayVote("c", 4, true, false)
	p.Decided(4, true)
	if p.Answers("b", 3) {
		t.Error("the old leader is answered after the vote was given")
	}
	// Nor after it asked for votes: it has given itself one.
	c.pass(time.Second)
	if err := p.MayAsk(5, false, true); err != nil || !p.Answers("c", 4) {
		t.Errorf("to ask for pre-votes is to give none: %v", err)
	}
	if p.MayAsk(5, false, false) == nil {
		t.Error("it asks for votes, and has just answered its leader")
	}
	c.pass(time.Second)
	if err := p.MayAsk(5, false, false); err != nil || p.Answers("c", 4) || p.Voted() != 5 {
		t.Errorf("the old leader is answered after it asked for votes in Raft term %d: %v", p.Voted(), err)
	}
}

// I3: a Raft term that was given up is never trusted again, and one that was
// silenced sends nothing more.
func TestGivenUp(t *testing.T) {
	p, c := newTestPact("a", "b", "c")
	trust := led(t, p)
	p.HandOver(5)
	if trust.Remaining() > 0 {
		t.Error("trust goes on while the term is handed over")
	}
	p.Acknowledged("b", 5, c.now)
	p.Proved(5, c.now)
	if trust.Remaining() > 0 || p.Begin(5, c.now) != nil || p.Usable(5) {
		t.Error("a Raft term that was given up is trusted again")
	}
	if p.Silent(5) {
		t.Error("a term that is handed over is silent: its heir could not catch up")
	}
	p.Acknowledged("b", 6, c.now)
	if p.Begin(6, c.now) == nil {
		t.Error("the next Raft term is not trusted")
	}
	p.Abdicate(6)
	if !p.Silent(6) || p.Silent(7) || p.Usable(6) || !p.Usable(7) {
		t.Error("to abdicate concerns this Raft term and no other")
	}
}

// Patience can be overridden in the term after the one that was handed over, and
// in no other: a message that comes late is no permission.
func TestPrivilege(t *testing.T) {
	p, _ := newTestPact("a", "b", "c")
	p.Answers("b", 5)
	if p.Privileged(1) || p.Privileged(6) {
		t.Error("privileged without a hand-over")
	}
	p.TakeOver(5)
	if p.Privileged(5) || !p.Privileged(6) || p.Privileged(7) {
		t.Error("the hand-over of Raft term 5 is for term 6")
	}
	if p.MayAsk(6, true, false) != nil || p.MayAsk(7, true, false) == nil || p.MayAsk(6, false, true) == nil {
		t.Error("it may ask for votes in Raft term 6 by the hand-over, and no others")
	}
}

// A read is confirmed by answers to messages that were sent after it began.
func TestConfirmed(t *testing.T) {
	p, c := newTestPact("a", "b", "c")
	old := c.now
	c.pass(10 * time.Millisecond)
	p.Acknowledged("b", 5, old)
	if ok, _ := p.Confirmed(5, c.now); ok {
		t.Error("confirmed by an answer to an older message")
	}
	_, answered := p.Confirmed(5, c.now)
	p.Acknowledged("c", 5, c.now)
	select {
	case <-answered:
	default:
		t.Error("it is not told of an answer")
	}
	if ok, _ := p.Confirmed(5, c.now); !ok {
		t.Error("not confirmed by a newer message")
	}
	if ok, _ := p.Confirmed(6, c.now); ok {
		t.Error("confirmed for another Raft term")
	}
}
