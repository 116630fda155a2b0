package auth

import (
	"container/list"
	"errors"
	"runtime"
	"sync"
	"time"
)

// Limits bound what callers can make the service do and hold. Zero means the default.
type Limits struct {
	// BodyBytes of one request, before identity. Default 1 MiB.
	BodyBytes int64
	// Rate is how many requests a second one identity may make, renewals apart, and
	// Burst how many at once. Default 500 and 1000. On loopback without credentials
	// there is no rate.
	Rate, Burst int
	// RenewRate and RenewBurst are the same for renewals. Default 1000 and 2000.
	RenewRate, RenewBurst int
	// FailRate and FailBurst are how many wrong JWTs a second come from an address before
	// those that it sends, and that are not known yet, are looked at a few at a time.
	// Default 20 and 100.
	FailRate, FailBurst int
	// Identities whose use is counted one by one, and as many addresses of callers
	// without one; those beyond share one allowance. Default 10,000.
	Identities int
	// InFlight is how many requests are handled at once, renewals, campaigns and streams
	// apart. Default 1024.
	InFlight int
	// Campaigns is how many campaigns use the engine at once. More of them would not be
	// done sooner, and would delay renewals. Those that wait for a vacancy do not count.
	// Default 8 for each processor, at least 16. CampaignsEach is how many of them one
	// identity or address may have (on loopback without credentials there is no such
	// limit). Default half of them.
	Campaigns, CampaignsEach int
	// Renewals is how many renewals and resignations are handled at once, in places that
	// nothing else can take. Default 1024. RenewalsEach is how many of them one identity may have under
	// way (on loopback without credentials there is no such limit). Default half of them.
	Renewals, RenewalsEach int
	// Line is how many requests, and as many renewals and campaigns, wait for a place, for
	// at most Patience. Default 4096, 1s.
	Line     int
	Patience time.Duration
	// Streams open at once, waiting calls among them, in all and of one identity (which
	// on loopback without credentials has no limit of its own). Default 20,000 and 100.
	Streams, StreamsEach int
	// GroupsEach is how many groups one identity may hold. Default 10,000.
	GroupsEach int
	// Candidates that may stand for one group. Default 1000.
	Candidates int
}

func (l Limits) withDefaults() Limits {
	def(&l.BodyBytes, 1<<20)
	def(&l.Rate, 500)
	def(&l.Burst, 2*l.Rate)
	def(&l.RenewRate, 1000)
	def(&l.RenewBurst, 2*l.RenewRate)
	def(&l.FailRate, 20)
	def(&l.FailBurst, 5*l.FailRate)
	def(&l.Identities, 10_000)
	def(&l.InFlight, 1024)
	def(&l.Campaigns, max(16, 8*runtime.GOMAXPROCS(0)))
	def(&l.CampaignsEach, (l.Campaigns+1)/2)
	def(&l.Renewals, 1024)
	def(&l.RenewalsEach, (l.Renewals+1)/2)
	def(&l.Line, 4096)
	def(&l.Patience, time.Second)
	def(&l.Streams, 20_000)
	def(&l.StreamsEach, 100)
	def(&l.GroupsEach, 10_000)
	def(&l.Candidates, 1000)
	return l
}

func (l Limits) check() error {
	for _, n := range []int64{
		l.BodyBytes, int64(l.Rate), int64(l.Burst), int64(l.RenewRate), int64(l.RenewBurst), int64(l.FailRate), int64(l.FailBurst), int64(l.Identities),
		int64(l.InFlight), int64(l.Campaigns), int64(l.CampaignsEach), int64(l.Renewals), int64(l.RenewalsEach), int64(l.Line), int64(l.Patience), int64(l.Streams), int64(l.StreamsEach), int64(l.GroupsEach), int64(l.Candidates),
	} {
		if n < 0 {
			return errors.New("access: a limit is negative; zero is the default, and a large number is as good as none")
		}
	}
	return nil
}

// bucket allows burst things at once and rate a second after that.
type bucket struct {
	rate, burst int
	used        float64
	at          time.Time
}

func (b *bucket) level(now time.Time) float64 {
	// A clock that was set back gives nothing and takes nothing.
	gone := max(0, now.Sub(b.at).Seconds())
	return max(0, b.used-gone*float64(b.rate))
}

// take answers zero, or how long to wait for the next.
func (b *bucket) take(now time.Time) time.Duration {
	b.used = b.level(now)
	b.at = now
	if over := b.used + 1 - float64(b.burst); over > 0 {
		return max(time.Millisecond, time.Duration(over/float64(b.rate)*float64(time.Second)))
	}
	b.used++
	return 0
}

// caller is what is counted of one identity or address.
type caller struct {
	key      string
	ordinary bucket
	renewals bucket
	failures bucket
	denials  bucket // lines of the audit: denials and failures
	silent   int    // those since the last line that were not written
	streams  int
	renewing int // under way
	running  int // campaigns that use the engine
}

func (c *caller) idle(now time.Time) bool {
	return c.streams+c.renewing+c.running == 0 &&
		c.ordinary.level(now)+c.renewals.level(now)+c.failures.level(now)+c.denials.level(now) == 0
}

// callers remembers a bounded number of them. One that has nothing to its debit is
// forgotten without loss; when none is, newcomers share one.
type callers struct {
	limits Limits
	mu     sync.Mutex
	by     map[string]*list.Element
	order  *list.List // most recent first
	others *caller
}

func newCallers(l Limits) *callers {
	c := &callers{limits: l, by: make(map[string]*list.Element), order: list.New()}
	c.others = c.fresh("")
	return c
}

const (
	denialRate  = 10
	denialBurst = 50
)

func (c *callers) fresh(key string) *caller {
	return &caller{
		key:      key,
		ordinary: bucket{rate: c.limits.Rate, burst: c.limits.Burst},
		renewals: bucket{rate: c.limits.RenewRate, burst: c.limits.RenewBurst},
		failures: bucket{rate: c.limits.FailRate, burst: c.limits.FailBurst},
		denials:  bucket{rate: denialRate, burst: denialBurst},
	}
}

// with runs f on what is known of key.
func (c *callers) with(key string, now time.Time, f func(*caller)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c.find(key, now))
}

func (c *callers) find(key string, now time.Time) *caller {
	if e, ok := c.by[key]; ok {
		c.order.MoveToFront(e)
		return e.Value.(*caller)
	}
	if len(c.by) >= c.limits.Identities && !c.forget(now) {
		return c.others
	}
	e := c.order.PushFront(c.fresh(key))
	c.by[key] = e
	return e.Value.(*caller)
}

// forget drops one of the callers that were not seen for longest. It looks at a few
// only: a flood of names must not make each of them a walk through all.
func (c *callers) forget(now time.Time) bool {
	const few = 8
	for range few {
		e := c.order.Back()
		old := e.Value.(*caller)
		if old.idle(now) {
			c.order.Remove(e)
			delete(c.by, old.key)
			return true
		}
		c.order.MoveToFront(e)
	}
	return false
}

func (c *callers) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.by)
}
