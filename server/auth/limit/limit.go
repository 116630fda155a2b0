// Package limit bounds what callers of the service can use: rates and counts of each caller, and
// slots for requests in progress.
package limit

import (
	"cmp"
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

// Config has the bounds. Zero means the default.
type Config struct {
	// BodyBytes of one request, before identity. Default 1 MiB.
	BodyBytes int64
	// Rate is how many requests a second one identity may make, without renewals, and Burst
	// how many at once. Default 500 and 1000. On loopback without credentials there is no
	// limit.
	Rate, Burst int
	// RenewRate and RenewBurst are the same for Renewals. Default 1000 and 2000.
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
	// and would delay Renewals. Campaigns that wait for a vacancy do not count. Default 8
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

// WithDefaults fills in the defaults.
func (c Config) WithDefaults() Config {
	c.BodyBytes = cmp.Or(c.BodyBytes, 1<<20)
	c.Rate = cmp.Or(c.Rate, 500)
	c.Burst = cmp.Or(c.Burst, 2*c.Rate)
	c.RenewRate = cmp.Or(c.RenewRate, 1000)
	c.RenewBurst = cmp.Or(c.RenewBurst, 2*c.RenewRate)
	c.FailRate = cmp.Or(c.FailRate, 20)
	c.FailBurst = cmp.Or(c.FailBurst, 5*c.FailRate)
	c.Identities = cmp.Or(c.Identities, 10_000)
	c.InFlight = cmp.Or(c.InFlight, 1024)
	c.Campaigns = cmp.Or(c.Campaigns, max(16, 8*runtime.GOMAXPROCS(0)))
	c.CampaignsEach = cmp.Or(c.CampaignsEach, (c.Campaigns+1)/2)
	c.Renewals = cmp.Or(c.Renewals, 1024)
	c.RenewalsEach = cmp.Or(c.RenewalsEach, (c.Renewals+1)/2)
	c.Line = cmp.Or(c.Line, 4096)
	c.Patience = cmp.Or(c.Patience, time.Second)
	c.Streams = cmp.Or(c.Streams, 20_000)
	c.StreamsEach = cmp.Or(c.StreamsEach, 100)
	c.GroupsEach = cmp.Or(c.GroupsEach, 10_000)
	c.Candidates = cmp.Or(c.Candidates, 1000)
	return c
}

// Check refuses negative limits.
func (c Config) Check() error {
	for v, i := reflect.ValueOf(c), 0; i < v.NumField(); i++ {
		if v.Field(i).Int() < 0 {
			return errors.New("auth: a limit is negative; zero means the default, and a large number means no limit")
		}
	}
	return nil
}

// Bucket allows burst events at once and rate events a second after that.
type Bucket struct{ *rate.Limiter }

func newBucket(perSecond, burst int) Bucket {
	return Bucket{rate.NewLimiter(rate.Limit(perSecond), burst)}
}

// Take returns zero, or how long to wait for the next event.
func (b Bucket) Take(now time.Time) time.Duration {
	r := b.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait <= 0 {
		return 0
	}
	r.CancelAt(now)
	return max(time.Millisecond, wait)
}

func (b Bucket) full(now time.Time) bool { return b.TokensAt(now) >= float64(b.Burst()) }

// Caller has the counters of one identity or address.
type Caller struct {
	key      string
	Ordinary Bucket
	Renewals Bucket
	Failures Bucket
	Denials  Bucket // audit lines for denials and failures
	Silent   int    // denials and failures without a line since the last line
	Streams  int
	Renewing int // renewals being handled
	Running  int // campaigns that use the engine
}

func (c *Caller) idle(now time.Time) bool {
	return c.Streams+c.Renewing+c.Running == 0 && c.Ordinary.full(now) && c.Renewals.full(now) && c.Failures.full(now) && c.Denials.full(now)
}

// Callers remembers a bounded number of callers. An idle caller can be forgotten without loss.
// If none is idle, new callers share one entry.
type Callers struct {
	limits Config
	mu     sync.Mutex
	by     map[string]*list.Element
	order  *list.List // most recent first
	others *Caller
}

// NewCallers returns counters without callers.
func NewCallers(l Config) *Callers {
	c := &Callers{limits: l, by: make(map[string]*list.Element), order: list.New()}
	c.others = c.fresh("")
	return c
}

// Audit lines for denials and failures of one caller: so many a second, and at once.
const (
	denialRate  = 10
	DenialBurst = 50
)

func (c *Callers) fresh(key string) *Caller {
	return &Caller{
		key: key, Ordinary: newBucket(c.limits.Rate, c.limits.Burst), Renewals: newBucket(c.limits.RenewRate, c.limits.RenewBurst),
		Failures: newBucket(c.limits.FailRate, c.limits.FailBurst), Denials: newBucket(denialRate, DenialBurst),
	}
}

// With calls f with the counters of key.
func (c *Callers) With(key string, now time.Time, f func(*Caller)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c.find(key, now))
}

func (c *Callers) find(key string, now time.Time) *Caller {
	if e, ok := c.by[key]; ok {
		c.order.MoveToFront(e)
		return e.Value.(*Caller)
	}
	if len(c.by) >= c.limits.Identities && !c.forget(now) {
		return c.others
	}
	e := c.order.PushFront(c.fresh(key))
	c.by[key] = e
	return e.Value.(*Caller)
}

// forget removes one of the callers that were not seen for longest. It checks a few only, so
// that a flood of names does not search all callers each time.
func (c *Callers) forget(now time.Time) bool {
	const few = 8
	for range few {
		e := c.order.Back()
		old := e.Value.(*Caller)
		if old.idle(now) {
			c.order.Remove(e)
			delete(c.by, old.key)
			return true
		}
		c.order.MoveToFront(e)
	}
	return false
}

// Share counts one more request of a caller, unless it has the most already: then less is nil.
func (c *Callers) Share(key string, now time.Time, of func(*Caller) *int, most int) (less func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := of(c.find(key, now))
	if *n >= most {
		return nil
	}
	*n++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		*n--
	}
}

// Count is how many callers have counters of their own.
func (c *Callers) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.by)
}

// Slots bounds how many requests are handled at once. A few more wait for a slot, for a short
// time.
type Slots struct {
	taken    chan struct{}
	waiting  atomic.Int64
	most     int64 // waiting
	patience time.Duration
}

// NewSlots returns n slots. So many requests may wait for one, for as long as patience.
func NewSlots(n, waiting int, patience time.Duration) *Slots {
	return &Slots{taken: make(chan struct{}, n), most: int64(waiting), patience: patience}
}

// Enter takes a slot, or reports that there was none.
func (l *Slots) Enter(ctx context.Context) bool {
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

// Leave gives a slot back.
func (l *Slots) Leave() { <-l.taken }

// Used is how many slots are taken.
func (l *Slots) Used() int { return len(l.taken) }

// Waiting is how many requests wait for a slot.
func (l *Slots) Waiting() int { return int(l.waiting.Load()) }
