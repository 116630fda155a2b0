package electortest

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
)

// cases are the contract.
var cases = []testCase{
	{name: "first", claim: "the only candidate wins", run: first},
	{name: "second waits", claim: "while one leads, nobody else does", run: secondWaits},
	{name: "resign", claim: "resigning ends the term, and the next candidate leads", run: resign},
	{name: "crash", claim: "when the leader crashes, another leads in time and with a larger token", run: crash},
	{name: "paused check", claim: "the first check after a pause fails, and a write without one is refused", run: pausedCheck},
	{name: "paused end", claim: "a term that expires during a pause ends without a call to Check", run: pausedEnd},
	{name: "partition", claim: "a partitioned leader stops believing within its lease, and before the next term begins", run: partition},
	{name: "heal", claim: "after the partition the old leader can lead again, once its work has returned, with a new token; its old term stays ended", run: heal},
	{name: "baton", claim: "after a resignation the new work begins only when the old work has returned", run: baton},
	{name: "transfer", claim: "a transfer makes the named candidate the leader, and no other", transfer: true, run: transfer},
	{name: "transfer baton", claim: "after a transfer the new work begins only when the old work has returned", transfer: true, run: transferBaton},
	{name: "no successor", claim: "a transfer to an unknown candidate or to the leader itself is refused, and the term goes on", transfer: true, run: noSuccessor},
	{name: "dead successor", claim: "a transfer to a dead candidate is refused, and the term goes on", transfer: true, run: deadSuccessor},
	{name: "hung work", claim: "resigning cancels work; if work does not return, nobody else leads until it has", run: hungWork},
	{name: "failing work", claim: "work that fails is retried after a pause", run: failingWork},
	{name: "panicking work", claim: "Lead passes on a panic of work and gives the group up", run: panickingWork},
	{name: "done", claim: "ErrDone from work ends Lead without an error and gives the group up", run: done},
	{name: "cancelled waiting", claim: "a cancelled campaign does not win, and the next one can", run: cancelledWaiting},
	{name: "cancelled winning", claim: "a campaign that is cancelled while it wins either returns a term or leaves the group free", run: cancelledWinning},
	{name: "cancelled leading", claim: "cancelling Lead cancels work and gives the group up", run: cancelledLeading},
	{name: "closed", claim: "Close fails the campaigns of a process, ends its terms and frees its groups", run: closed},
	{name: "leaders", claim: "an observer sees the leader now, and then every term, in order", run: leaders},
	{name: "blind", claim: "an observer that cannot reach the engine gets unknown, never vacant", run: blind},
	{name: "tokens", claim: "each term has a larger token than all before it, however they ended", run: tokens},
	{name: "seal refused", claim: "a candidate whose sink refuses the seal gives the group up and logs why", run: sealRefused},
	{name: "seal hangs", claim: "a candidate whose sink does not answer in time gives the group up and logs why", run: sealHangs},
}

func first(c *check) {
	a := c.start("a")
	term := c.win(a)
	c.leads(term)
	if term.Group() != c.group || term.Candidate().ID != "a" {
		c.Errorf("the term is of group %q and candidate %q", term.Group(), term.Candidate().ID)
	}
	if err := term.Stamp().WithSeq(1).Validate(); err != nil {
		c.Errorf("its stamp is invalid: %v", err)
	}
	if r := term.Remaining(); r <= 0 || r > c.Lease {
		c.Errorf("%v remain of a lease of %v", r, c.Lease)
	}
	l, err := a.Elector().Leader(c.ctx)
	if err != nil {
		c.Fatalf("Leader: %v", err)
	}
	if l.Group != c.group || l.State != tenure.Led || l.Candidate.ID != "a" || l.Token != term.Token() {
		c.Errorf("Leader: group %q is %v by %q with token %d, want it led by a with %d", l.Group, l.State, l.Candidate.ID, l.Token, term.Token())
	}
}

func secondWaits(c *check) {
	a, b := c.start("a"), c.start("b")
	term := c.win(a)
	c.campaign(b).waits(2 * c.Lease)
	c.leads(term)
}

func resign(c *check) {
	a, b := c.start("a"), c.start("b")
	term := c.win(a)
	next := c.campaign(b)
	c.resign(term)
	c.ends(term, 0, tenure.ErrResigned)
	c.leads(next.wins(c.Failover))
}

func crash(c *check) {
	a, b := c.start("a"), c.start("b")
	c.win(a)
	next := c.campaign(b)
	next.waits(c.Lease / 4)
	a.Crash()
	c.leads(next.wins(c.Failover))
}

func pausedCheck(c *check) {
	a, b := c.start("a"), c.start("b")
	old := c.win(a)
	next := c.campaign(b)
	c.leads(old)
	a.Pause()
	time.Sleep(c.Lease)
	newer := next.wins(c.Failover)
	var s sink
	if err := newer.Seal(c.ctx, &s); err != nil {
		c.Fatalf("the next leader cannot seal: %v", err)
	}
	if err := s.write(old.Stamp()); !errors.Is(err, fence.ErrRefused) {
		c.Errorf("the stale write was not refused: %v", err)
	}
	c.over(old, old.Check(), tenure.ErrExpired, tenure.ErrLost)
	a.Resume()
	c.ends(old, c.Lease, tenure.ErrExpired, tenure.ErrLost)
	if err := s.write(newer.Stamp()); err != nil {
		c.Errorf("the leader's write was refused: %v", err)
	}
}

func pausedEnd(c *check) {
	a := c.start("a")
	term := c.win(a)
	a.Pause()
	time.Sleep(c.Lease + c.Lease/4)
	a.Resume()
	c.ends(term, c.Lease, tenure.ErrExpired, tenure.ErrLost)
}

func partition(c *check) {
	a, b := c.start("a"), c.start("b")
	old := c.win(a)
	next := c.campaign(b)
	next.waits(c.Lease / 4)
	c.leads(old)
	cut := time.Now()
	a.Partition()
	believed := make(chan time.Time, 1)
	c.background.Go(func() {
		var last time.Time
		for c.ctx.Err() == nil {
			now := time.Now()
			if old.Check() != nil {
				break
			}
			last = now
			time.Sleep(time.Millisecond)
		}
		believed <- last
	})
	next.wins(c.Failover)
	last := receives(c, "the one that is cut off stops believing", believed, c.Lease)
	if d := last.Sub(cut); d > c.Lease {
		c.Errorf("it believed for %v, with a lease of %v", d, c.Lease)
	}
	if d := last.Sub(next.at); d > 0 {
		c.Errorf("it believed for %v after another led", d)
	}
	c.ends(old, 0, tenure.ErrExpired, tenure.ErrLost)
}

func heal(c *check) {
	a, b := c.start("a"), c.start("b")
	old := c.win(a)
	next := c.campaign(b)
	a.Partition()
	// Without a call to Check: the term must end by itself.
	c.ends(old, c.Lease+c.Lease/4, tenure.ErrExpired, tenure.ErrLost)
	newer := next.wins(c.Failover)
	a.Heal()
	c.campaign(a).refused()
	c.returned(old)
	again := c.campaign(a)
	again.waits(c.Lease)
	c.resign(newer)
	c.leads(again.wins(c.Failover))
	if old.Check() == nil {
		c.Errorf("the old term is back")
	}
}

// passBaton makes a lead and hand over while a's work still runs. b must not begin before that
// work has returned.
func passBaton(c *check, handOver func(*tenure.Term), reason error) {
	a, b := c.start("a"), c.start("b")
	var returned atomic.Bool
	leads := make(chan *tenure.Term, 1)
	la := c.lead(a, func(ctx context.Context, t *tenure.Term) error {
		leads <- t
		<-ctx.Done()
		time.Sleep(c.Lease / 2)
		returned.Store(true)
		return tenure.ErrDone
	})
	old := receives(c, "a leads", leads, c.Failover)
	began := make(chan bool, 1)
	c.lead(b, func(ctx context.Context, _ *tenure.Term) error {
		began <- returned.Load()
		<-ctx.Done()
		return nil
	})
	silence(c, "b leads too", began, c.Lease/2)
	handOver(old)
	c.ends(old, 0, reason)
	if !receives(c, "b leads", began, c.Lease/2+c.Failover) {
		c.Errorf("b began before the work of a had returned")
	}
	if err := la.returns(c.Failover); err != nil {
		c.Errorf("the Lead of a: %v", err)
	}
}

func baton(c *check) { passBaton(c, c.resign, tenure.ErrResigned) }

func transferBaton(c *check) {
	passBaton(c, func(t *tenure.Term) { c.transfer(t, "b") }, tenure.ErrTransferred)
}

func transfer(c *check) {
	a, b, d := c.start("a"), c.start("b"), c.start("c")
	term := c.win(a)
	waiting := c.campaign(b)
	waiting.waits(c.Lease / 4) // so that b is the first candidate
	named := c.campaign(d)
	c.transfer(term, "c")
	c.ends(term, 0, tenure.ErrTransferred)
	c.leads(named.wins(c.Failover))
	waiting.waits(c.Lease / 2)
}

func noSuccessor(c *check) {
	a := c.start("a")
	term := c.win(a)
	for _, to := range []string{"nobody", "a"} {
		ctx, cancel := context.WithTimeout(c.ctx, c.Failover)
		if err := term.TransferTo(ctx, to); !errors.Is(err, tenure.ErrSuccessor) {
			c.Errorf("transfer to %q: %v, want ErrSuccessor", to, err)
		}
		cancel()
		c.leads(term)
	}
	time.Sleep(c.Lease)
	c.leads(term)
}

func deadSuccessor(c *check) {
	a, b := c.start("a"), c.start("b")
	term := c.win(a)
	c.campaign(b).waits(c.Lease / 4)
	b.Crash()
	time.Sleep(c.Failover)
	ctx, cancel := context.WithTimeout(c.ctx, c.Failover)
	defer cancel()
	if err := term.TransferTo(ctx, "b"); !errors.Is(err, tenure.ErrSuccessor) {
		c.Errorf("transfer to a dead candidate: %v, want ErrSuccessor", err)
	}
	c.leads(term)
	time.Sleep(c.Lease)
	c.leads(term)
}

func hungWork(c *check) {
	a, b := c.start("a"), c.start("b")
	leads := make(chan *tenure.Term, 1)
	told := make(chan error, 1)
	release := make(chan struct{})
	defer func() { close(release) }()
	c.lead(a, func(ctx context.Context, t *tenure.Term) error {
		leads <- t
		<-ctx.Done()
		told <- context.Cause(ctx)
		<-release
		return tenure.ErrDone
	})
	term := receives(c, "a leads", leads, c.Failover)
	next := c.campaign(b)
	next.waits(c.Lease / 4)
	c.resign(term)
	c.over(term, receives(c, "work is told to stop", told, c.Lease), tenure.ErrResigned)
	next.waits(3 * c.Lease)
	release <- struct{}{}
	next.wins(c.Failover)
}

func failingWork(c *check) {
	a := c.start("a")
	const times = 20
	pause := max(c.Lease/10, 10*time.Millisecond)
	var tries atomic.Int32
	c.lead(a, func(context.Context, *tenure.Term) error {
		tries.Add(1)
		return errors.New("work fails")
	}, tenure.WithBackoff(pause, pause))
	time.Sleep(times * pause)
	if n := tries.Load(); n > times+1 {
		c.Errorf("work was tried %d times in %v, with pauses of %v", n, times*pause, pause)
	}
	time.Sleep(c.Failover)
	if n := tries.Load(); n < 2 {
		c.Errorf("work was tried %d times in %v", n, times*pause+c.Failover)
	}
}

func panickingWork(c *check) {
	a, b := c.start("a"), c.start("b")
	l := c.lead(a, func(context.Context, *tenure.Term) error { panic("work panics") })
	_ = l.returns(c.Failover)
	if l.panicked != "work panics" {
		c.Errorf("Lead panicked with %v", l.panicked)
	}
	c.win(b)
}

func done(c *check) {
	a, b := c.start("a"), c.start("b")
	l := c.lead(a, func(context.Context, *tenure.Term) error { return tenure.ErrDone })
	if err := l.returns(c.Failover); err != nil {
		c.Errorf("Lead: %v", err)
	}
	c.win(b)
}

func cancelledWaiting(c *check) {
	a, b, d := c.start("a"), c.start("b"), c.start("c")
	term := c.win(a)
	off := c.campaign(b)
	off.waits(c.Lease / 4)
	off.cancel()
	receives(c, "the campaign returns", off.done, c.Lease)
	if !errors.Is(off.err, context.Canceled) {
		c.Errorf("the campaign: %v, want its context's error", off.err)
	}
	c.resign(term)
	c.win(d)

	over, cancel := context.WithCancel(c.ctx)
	cancel()
	if _, err := b.Elector().Campaign(over); !errors.Is(err, context.Canceled) {
		c.Errorf("a campaign with a context that has ended: %v", err)
	}
}

func cancelledWinning(c *check) {
	a, b, d := c.start("a"), c.start("b"), c.start("c")
	const rounds = 8
	var usual time.Duration // from a resignation to the next term
	for i := range rounds + 1 {
		term := c.win(a)
		off := c.campaign(b)
		off.waits(c.Lease / 10)
		resigned := time.Now()
		if i > 0 {
			time.AfterFunc(usual*time.Duration(4+i)/10, off.cancel)
		}
		c.resign(term)
		receives(c, "the campaign returns", off.done, c.Failover)
		switch {
		case off.err == nil:
			c.resign(off.term)
		case i == 0 || !errors.Is(off.err, context.Canceled):
			c.Fatalf("the campaign: %v", off.err)
		}
		if i == 0 {
			usual = off.at.Sub(resigned)
		}
		c.resign(c.win(d))
	}
}

func cancelledLeading(c *check) {
	a, b := c.start("a"), c.start("b")
	leads := make(chan *tenure.Term, 1)
	l := c.lead(a, func(ctx context.Context, t *tenure.Term) error {
		leads <- t
		<-ctx.Done()
		return ctx.Err()
	})
	term := receives(c, "a leads", leads, c.Failover)
	next := c.campaign(b)
	next.waits(c.Lease / 4)
	l.cancel()
	if err := l.returns(c.Failover); !errors.Is(err, context.Canceled) {
		c.Errorf("Lead: %v, want its context's error", err)
	}
	c.ends(term, 0, tenure.ErrResigned)
	next.wins(c.Failover)
}

func closed(c *check) {
	a, b, d := c.start("a"), c.start("b"), c.start("c")
	leads := make(chan *tenure.Term, 1)
	var returned atomic.Bool
	l := c.lead(a, func(ctx context.Context, t *tenure.Term) error {
		leads <- t
		<-ctx.Done()
		time.Sleep(c.Lease / 4)
		returned.Store(true)
		return nil
	})
	term := receives(c, "a leads", leads, c.Failover)
	waiting := c.campaign(b)
	next := c.campaign(d)
	waiting.waits(c.Lease / 4)
	shut := func(p *candidate) {
		ctx, cancel := context.WithTimeout(c.ctx, c.Failover)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			c.Errorf("Close: %v", err)
		}
	}
	shut(b)
	receives(c, "a campaign of the closed process returns", waiting.done, c.Lease)
	if waiting.err == nil {
		c.Errorf("a campaign of a closed process was won")
	}
	shut(a)
	if !returned.Load() {
		c.Errorf("Close returned before work had")
	}
	c.ends(term, 0, tenure.ErrResigned)
	if err := l.returns(c.Failover); err == nil {
		c.Errorf("the Lead of a closed process has no error")
	}
	next.wins(c.Failover)
}

// observe collects what an observer sees.
func (c *check) observe(p *candidate) <-chan observation {
	const most = 1000
	seen := make(chan observation, most)
	c.background.Go(func() {
		for l, err := range p.Elector().Leaders(c.ctx) {
			select {
			case seen <- observation{l, err}:
			default:
				c.Errorf("an observer got more than %d values", most)
				return
			}
		}
	})
	return seen
}

type observation struct {
	tenure.Leader
	err error
}

// until reads up to the state of the term with the token. Tokens must not go down on the way.
func (c *check) until(seen <-chan observation, token fence.Token, state tenure.State) (read []observation) {
	last := fence.Token(0)
	for {
		s := receives(c, "the observer is told of the term", seen, c.Failover)
		read = append(read, s)
		switch {
		case s.State == tenure.Unknown:
			if s.err == nil {
				c.Errorf("unknown, without a reason")
			}
			continue
		case s.err != nil:
			c.Errorf("%v, with an error: %v", s.State, s.err)
		case s.Group != c.group:
			c.Errorf("the observer got a view of group %q", s.Group)
		case s.Token < last:
			c.Errorf("token %d comes after %d", s.Token, last)
		}
		last = s.Token
		if s.Token == token && s.State == state {
			return read
		}
	}
}

func leaders(c *check) {
	a, b, d := c.start("a"), c.start("b"), c.start("c")
	term := c.win(a)
	seen := c.observe(d)
	now := receives(c, "the observer is told who leads now", seen, c.Failover)
	if now.State != tenure.Led || now.Token != term.Token() || now.Candidate.ID != "a" {
		c.Errorf("the observer is told first: %v by %q with token %d, want led by a with %d", now.State, now.Candidate.ID, now.Token, term.Token())
	}
	won := []fence.Token{}
	for _, p := range []*candidate{b, a, b, a} {
		c.resign(term)
		term = c.win(p)
		won = append(won, term.Token())
	}
	told := []fence.Token{}
	for _, s := range c.until(seen, term.Token(), tenure.Led) {
		told = append(told, s.Token)
	}
	for _, t := range won {
		if !slices.Contains(told, t) {
			c.Errorf("the observer was not told of the term with token %d, only of %v", t, told)
		}
	}
	c.resign(term)
	c.until(seen, term.Token(), tenure.Vacant)
}

func blind(c *check) {
	a, b := c.start("a"), c.start("b")
	term := c.win(a)
	seen := c.observe(b)
	c.until(seen, term.Token(), tenure.Led)
	b.Partition()
	s := receives(c, "the observer is told that it cannot see", seen, c.Failover)
	if s.State != tenure.Unknown || s.err == nil {
		c.Errorf("an observer that is cut off is told: %v (%v), want unknown and why", s.State, s.err)
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.Failover)
	l, err := b.Elector().Leader(ctx)
	cancel()
	if err == nil || l.State != tenure.Unknown {
		c.Errorf("Leader, asked by a process that is cut off: %v (%v), want unknown and why", l.State, err)
	}
	c.leads(term)
	b.Heal()
	for _, s := range c.until(seen, term.Token(), tenure.Led) {
		if s.State == tenure.Vacant {
			c.Errorf("the observer was told vacant, while a led")
		}
	}
}

func tokens(c *check) {
	a, b := c.start("a"), c.start("b")
	term := c.win(a) // note compares
	for range 3 {
		c.resign(term)
		term = c.win(b)
		c.resign(term)
		term = c.win(a)
	}
	if c.Transfer {
		next := c.campaign(b)
		c.transfer(term, "b")
		term = next.wins(c.Failover)
	} else {
		c.resign(term)
		term = c.win(b)
	}
	next := c.campaign(a)
	b.Pause()
	newer := next.wins(c.Failover)
	b.Resume()
	c.returned(term)
	c.resign(newer)
	c.win(b)
	next = c.campaign(a)
	b.Crash()
	next.wins(c.Failover)
	again := c.start("b")
	next = c.campaign(again)
	a.Crash()
	next.wins(c.Failover)
}

// sealing lets a try to lead with a sink that cannot be sealed.
func sealing(c *check, broken sealer, says string) {
	a, b := c.start("a"), c.start("b")
	pause := max(c.Lease/10, 10*time.Millisecond)
	var seals, worked atomic.Int32
	var log logCollector
	start := time.Now()
	l := c.lead(a, func(context.Context, *tenure.Term) error {
		worked.Add(1)
		return tenure.ErrDone
	}, tenure.WithSinks(sealer(func(ctx context.Context, s fence.Stamp) error {
		seals.Add(1)
		return broken(ctx, s)
	})), tenure.WithSealTimeout(pause), tenure.WithBackoff(pause, pause), log.option())
	for deadline := start.Add(c.Failover + 10*pause); seals.Load() < 3; time.Sleep(pause / 5) {
		if time.Now().After(deadline) {
			c.Fatalf("the sink was to be sealed %d times in %v", seals.Load(), time.Since(start))
		}
	}
	if n, most := seals.Load(), int32(time.Since(start)/pause)+1; n > most {
		c.Errorf("%d tries in %v, with pauses of %v", n, time.Since(start), pause)
	}
	c.win(b)
	l.cancel()
	_ = l.returns(c.Failover)
	if worked.Load() > 0 {
		c.Errorf("work began although the sink was not sealed")
	}
	if !log.says(says) {
		c.Errorf("the log does not have the reason %q", says)
	}
}

func sealRefused(c *check) {
	sealing(c, func(_ context.Context, s fence.Stamp) error {
		return &fence.ForeignError{Stamp: s, Mark: fence.Mark{Deployment: "another", Group: s.Group, Token: 1}}
	}, "foreign write refused")
}

func sealHangs(c *check) {
	sealing(c, func(ctx context.Context, _ fence.Stamp) error {
		<-ctx.Done()
		return ctx.Err()
	}, "deadline exceeded")
}
