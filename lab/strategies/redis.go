package strategies

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// The scripts of a lock with an owner and a token. The token's key never expires.
const (
	takeScript   = `if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end return 0`
	extendScript = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0`
	deleteScript = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`
)

// redisLock is a lock on one Redis or, as Redlock, on several.
type redisLock struct {
	Config
	sent    *sent
	clients []*redis.Client
}

func openRedisLock(c Config, n *sent) *redisLock {
	r := &redisLock{Config: c, sent: n}
	for _, addr := range c.Links {
		r.clients = append(r.clients, redis.NewClient(&redis.Options{
			Addr: addr, MaxRetries: -1, DisableIdentity: true, DialTimeout: c.beat(), ReadTimeout: c.beat(), WriteTimeout: c.beat(), ContextTimeoutEnabled: true,
		}))
	}
	return r
}

func (r *redisLock) Close() {}

func (r *redisLock) key() string { return "{" + r.Group + "}:lock" }

// each makes a call on every server, and counts those that answer with a number above 0. It
// returns the answer of the last one.
func (r *redisLock) each(ctx context.Context, count *atomic.Int64, args ...any) (yes int, number int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.beat())
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, c := range r.clients {
		count.Add(1)
		all.Go(func() {
			n, e := c.Do(ctx, args...).Int64()
			mu.Lock()
			defer mu.Unlock()
			if e == nil && n > 0 {
				yes, number = yes+1, n
			}
			if e != nil {
				err = e
			}
		})
	}
	all.Wait()
	return yes, number, err
}

func (r *redisLock) script(ctx context.Context, count *atomic.Int64, text, owner string) (int, int64, error) {
	return r.each(ctx, count, "EVAL", text, 2, r.key(), "{"+r.Group+"}:token", owner, r.TTL.Milliseconds())
}

// set is SET NX PX without an owner that anybody compares.
const setScript = `if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end return 0`

// redisElector is a lock on one Redis, as its strategy says.
type redisElector struct{ *redisLock }

func openRedis(_ context.Context, c Config, n *sent) (Elector, error) {
	return redisElector{openRedisLock(c, n)}, nil
}

// holder is an owner that no other process has.
func (r *redisLock) holder() string { return fmt.Sprintf("%d-%x", r.ID, rand.Uint64()) }

// trust is the end of a lease that began at a time, with a margin for the clocks.
func (r *redisLock) trust(sent time.Time) time.Time { return sent.Add(r.TTL - r.TTL/20) }

func (r redisElector) Campaign(ctx context.Context) (Term, error) {
	script, owner := setScript, r.holder()
	if r.Strategy == "redis-token" {
		script = takeScript
	}
	for {
		asked := time.Now()
		yes, token, err := r.script(ctx, &r.sent.others, script, owner)
		if err != nil {
			return Term{}, err
		}
		if yes > 0 {
			return r.lead(ctx, owner, uint64(max(token, 0)), asked), nil
		}
		if !pause(ctx, r.beat()) {
			return Term{}, ctx.Err()
		}
	}
}

// lead holds the lock.
//
// redis-blind extends the key whoever owns it, and believes until the key is gone.
// redis-delete believes for the time of its lease, and deletes the key afterwards, whoever owns it.
// redis-token compares the owner for both, and counts its lease from when it asked.
func (r redisElector) lead(ctx context.Context, owner string, token uint64, asked time.Time) Term {
	end := atomic.Pointer[time.Time]{}
	trust := r.trust(asked)
	end.Store(&trust)
	blind := r.Strategy == "redis-blind"
	var lost atomic.Bool
	watching, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pause(watching, r.beat()) && r.Strategy != "redis-delete" {
			asked := time.Now()
			var yes int
			var err error
			if blind {
				yes, _, err = r.each(watching, &r.sent.beats, "PEXPIRE", r.key(), r.TTL.Milliseconds())
			} else {
				yes, _, err = r.script(watching, &r.sent.beats, extendScript, owner)
			}
			switch {
			case err != nil:
			case yes == 0:
				lost.Store(true)
			default:
				trust := r.trust(asked)
				end.Store(&trust)
			}
		}
	}()
	if r.Strategy != "redis-token" {
		token = 0
	}
	believes := func() bool { return !lost.Load() && (blind || time.Now().Before(*end.Load())) }
	return Term{Token: token, Believes: believes, Stop: func(ctx context.Context) error {
		stop()
		<-done
		if r.Strategy == "redis-token" {
			_, _, err := r.script(ctx, &r.sent.others, deleteScript, owner)
			return err
		}
		_, _, err := r.each(ctx, &r.sent.others, "DEL", r.key())
		return err
	}}
}

// redlock takes a key on most of several independent servers. It gives no number that grows.
type redlock struct{ *redisLock }

func openRedlock(_ context.Context, c Config, n *sent) (Elector, error) {
	return redlock{openRedisLock(c, n)}, nil
}

func (r redlock) most(yes int) bool { return yes > len(r.clients)/2 }

func (r redlock) Campaign(ctx context.Context) (Term, error) {
	for {
		owner, asked := r.holder(), time.Now()
		yes, _, _ := r.script(ctx, &r.sent.others, setScript, owner)
		if r.most(yes) && time.Now().Before(r.trust(asked)) {
			return r.lead(ctx, owner, asked), nil
		}
		if yes > 0 {
			_, _, _ = r.script(ctx, &r.sent.others, deleteScript, owner)
		}
		// At random, so that candidates do not share the servers forever.
		if !pause(ctx, r.beat()/2+time.Duration(rand.Int64N(int64(r.beat())))) {
			return Term{}, ctx.Err()
		}
	}
}

func (r redlock) lead(ctx context.Context, owner string, asked time.Time) Term {
	end := atomic.Pointer[time.Time]{}
	trust := r.trust(asked)
	end.Store(&trust)
	watching, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pause(watching, r.beat()) {
			asked := time.Now()
			if yes, _, _ := r.script(watching, &r.sent.beats, extendScript, owner); r.most(yes) {
				trust := r.trust(asked)
				end.Store(&trust)
			}
		}
	}()
	return Term{Believes: func() bool { return time.Now().Before(*end.Load()) }, Stop: func(ctx context.Context) error {
		stop()
		<-done
		_, _, _ = r.script(ctx, &r.sent.others, deleteScript, owner) // what is left expires
		return nil
	}}
}
