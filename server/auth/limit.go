package auth

import (
	"container/list"
	"context"
	"errors"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limits bound what callers can make the service do and hold. Zero means the default.
type Limits struct {
	// BodyBytes of one request, before identity. Default 1 MiB.
	BodyBytes int64
	// Rate is how many requests a second one identity may make, without renewals, and Burst
	// how many at once. Default 500 and 1000. On loopback without credentials there is no
	// limit.
	Rate, Burst int
	// RenewRate and RenewBurst are the same for renewals. Default 1000 and 2000.
	RenewRate, RenewBurst int
	// FailRate and FailBurst are how many invalid JWTs a second an address may send before
	// its unknown JWTs are verified only a few at a time. Default 20 and 100.
	FailRate, FailBurst int
	// Identities that are counted one by one, and as many addresses of callers without an
	// identity. Further ones share one allowance. Default 10,000.
	Identities int
	// InFlight is how many requests are handled at once, without renewals, campaigns and
	// streams. Default 1024.
	InFlight int
	// Campaigns is how many campaigns use the engine at once. More would not finish sooner
	// and would delay renewals. Campaigns that wait for a vacancy do not count. Default 8
	// per processor, at least 16. CampaignsEach is how many of them one identity or address
	// may have (on loopback without credentials there is no limit). Default half of them.
	Campaigns, CampaignsEach int
	// Renewals is how many renewals and resignations are handled at once. Nothing else can
	// use their slots. Default 1024. RenewalsEach is how many of them one identity may have
	// (on loopback without credentials there is no limit). Default half of them.
	Renewals, RenewalsEach int
	// Line is how many requests, and as many renewals and campaigns, wait for a slot, for at
	// most Patience. Default 4096, 1s.
	Line     int
	Patience time.Duration
	// Streams is how many streams and waiting calls may be open, and StreamsEach how many of
	// one identity (on loopback without credentials there is no limit). Default 20,000 and
	// 100.
	Streams, StreamsEach int
	// GroupsEach is how many groups one identity may hold. Default 10,000.
	GroupsEach int
	// Candidates is how many candidates one group may have. Default 1000.
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
	for v, i := reflect.ValueOf(l), 0; i < v.NumField(); i++ {
		if v.Field(i).Int() < 0 {
			return errors.New("auth: a limit is negative; zero means the default, and a large number means no limit")
		}
	}
	return nil
}

// bucket allows burst events at once and rate events a second after that.
type bucket struct{ *rate.Limiter }

func newBucket(perSecond, burst int) bucket {
	return bucket{rate.NewLimiter(rate.Limit(perSecond), burst)}
}

// take returns zero, or how long to wait for the next event.
func (b bucket) take(now time.Time) time.Duration {
	r := b.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait <= 0 {
		return 0
	}
	r.CancelAt(now)
	return max(time.Millisecond, wait)
}

func (b bucket) full(now time.Time) bool { return b.TokensAt(now) >= float64(b.Burst()) }

// caller has the counters of one identity or address.
type caller struct {
	key      string
	ordinary bucket
	renewals bucket
	failures bucket
	denials  bucket // audit lines for denials and failures
	silent   int    // denials and failures without a line since the last line
	streams  int
	renewing int // renewals being handled
	running  int // campaigns that use the engine
}

func (c *caller) idle(now time.Time) bool {
	return c.streams+c.renewing+c.running == 0 && c.ordinary.full(now) && c.renewals.full(now) && c.failures.full(now) && c.denials.full(now)
}

// callers remembers a bounded number of callers. An idle caller can be forgotten without loss.
// If none is idle, new callers share one entry.
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
		key: key, ordinary: newBucket(c.limits.Rate, c.limits.Burst), renewals: newBucket(c.limits.RenewRate, c.limits.RenewBurst),
		failures: newBucket(c.limits.FailRate, c.limits.FailBurst), denials: newBucket(denialRate, denialBurst),
	}
}

// with calls f with the counters of key.
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

// forget removes one of the callers that were not seen for longest. It checks a few only, so
// that a flood of names does not search all callers each time.
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

// slots bounds how many requests are handled at once. A few more wait for a slot, for a short
// time.
type slots struct {
	taken    chan struct{}
	waiting  atomic.Int64
	most     int64 // waiting
	patience time.Duration
}

func newSlots(n, waiting int, patience time.Duration) *slots {
	return &slots{taken: make(chan struct{}, n), most: int64(waiting), patience: patience}
}

// enter takes a slot, or reports that there was none.
func (l *slots) enter(ctx context.Context) bool {
	select {
	case l.taken <- struct{}{}:
		return true
	default:
	}
	defer l.waiting.Add(-1)
	if l.waiting.Add(1) > l.most {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	select {
	case l.taken <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *slots) leave() { <-l.taken }

func (l *slots) used() int { return len(l.taken) }
