// Package kvtest tests a kv.Driver. It also has [Hostile], a driver that delays, reorders and
// drops everything that a driver may, to test the store above it.
//
//	func TestDriver(t *testing.T) {
//		kvtest.Run(t, kvtest.Engine{
//			Open:   func(t *testing.T) kv.Driver { return connect(t) },
//			Settle: time.Second, // how late the end of a lease may show
//		})
//	}
//
// # Limitations
//
// It tests the driver only. Run store/storetest on a store over the driver too. It cannot test
// that an engine keeps acknowledged writes through crashes.
package kvtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store/kv"
)

// Engine is what is tested.
type Engine struct {
	// Open connects another client to the same engine, until the test ends.
	Open func(t *testing.T) kv.Driver
	// Settle is how long after its TTL the end of a lease may take to show.
	Settle time.Duration
	// Patience is how long to wait for what must come. Default 15 s.
	Patience time.Duration
}

// Case is one promise of a driver.
type Case struct {
	Name  string
	check func(*check)
	lease bool // only for a Leaser
}

// Cases lists them.
func Cases() []Case {
	return []Case{
		{"a commit is made if its conditions hold", conditions, false},
		{"versions grow, also across a delete", versionsGrow, false},
		{"reads see the commit and what others committed", readsAfter, false},
		{"one of many concurrent commits wins", oneWins, false},
		{"a listing is in order and in pages", listed, false},
		{"a watch tells that it began, and then of every change", watched, false},
		{"a watch ticks", ticks, false},
		{"the index does not go back", indexGrows, false},
		{"calls obey their context", contexts, false},
		{"a lease is granted once for each id", grantRetried, true},
		{"a lease that is not renewed ends, with its keys", leaseEnds, true},
		{"a lease that is renewed lives on", leaseRenewed, true},
		{"a revoked lease is dead", leaseRevoked, true},
	}
}

// Run checks every case, one subtest each.
func Run(t *testing.T, e Engine) {
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if err := Check(t, e, c); err != nil {
				t.Error(err)
			}
		})
	}
}

// Check returns what is wrong with one case, nil if nothing is.
func Check(t *testing.T, e Engine, c Case) error {
	if e.Patience == 0 {
		e.Patience = 15 * time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*e.Patience)
	defer cancel()
	k := &check{t: t, e: e, ctx: ctx, d: e.Open(t), prefix: "record/" + strconv.FormatUint(rand.Uint64(), 36) + "-"}
	if c.lease && !k.d.Caps().Native {
		return nil
	}
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(giveUp{}) {
				panic(r)
			}
		}()
		c.check(k)
	}()
	return errors.Join(k.wrong...)
}

type giveUp struct{}

type check struct {
	t      *testing.T
	e      Engine
	ctx    context.Context
	d      kv.Driver
	prefix string
	wrong  []error
}

func (c *check) errorf(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Errorf(format, args...))
}

func (c *check) must(what string, err error) {
	if err != nil {
		c.errorf("%s: %w", what, err)
		panic(giveUp{})
	}
}

func (c *check) key(name string) string { return c.prefix + name }

func (c *check) commit(t kv.Txn) kv.Result {
	r, err := c.d.Commit(c.ctx, t)
	c.must("commit", err)
	return r
}

func (c *check) put(key, value string, seen uint64) uint64 {
	r := c.commit(kv.Txn{If: []kv.Cond{{Key: key, Version: seen}}, Then: []kv.Write{{Key: key, Value: []byte(value)}}})
	if !r.OK || len(r.Versions) != 1 {
		c.errorf("a write of %s from version %d answered %+v", key, seen, r)
		panic(giveUp{})
	}
	return r.Versions[0]
}

func (c *check) get(d kv.Driver, key string) kv.Item {
	r, err := d.Commit(c.ctx, kv.Txn{Read: []string{key}})
	c.must("read", err)
	if len(r.Items) != 1 || r.Items[0].Key != key {
		c.errorf("a read of %s answered %+v", key, r)
		panic(giveUp{})
	}
	return r.Items[0]
}

func (c *check) eventually(what string, f func() bool) {
	deadline := time.Now().Add(c.e.Patience)
	for !f() {
		if time.Now().After(deadline) {
			c.errorf("%s: still not after %v", what, c.e.Patience)
			panic(giveUp{})
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func conditions(c *check) {
	key := c.key("k")
	refused := func(what string, version uint64) {
		r := c.commit(kv.Txn{If: []kv.Cond{{Key: key, Version: version}}, Then: []kv.Write{{Key: key, Value: []byte("no")}}})
		if r.OK {
			c.errorf("%s: a write from version %d was made", what, version)
		}
	}
	refused("missing", kv.Any)
	refused("missing", 7)
	v := c.put(key, "one", 0)
	refused("present", 0)
	refused("present", v+1)
	c.put(key, "two", v)
	refused("changed", v)
	c.put(key, "three", kv.Any)
	if i := c.get(c.d, key); string(i.Value) != "three" {
		c.errorf("the value is %q", i.Value)
	}
	if c.d.Caps().Keys < 2 {
		return
	}
	other := c.key("other")
	r := c.commit(kv.Txn{
		If:   []kv.Cond{{Key: key, Version: kv.Any}, {Key: other, Version: kv.Any}},
		Then: []kv.Write{{Key: key}, {Key: other, Value: []byte("x")}},
		Read: []string{key}, Else: []string{other},
	})
	if r.OK || len(r.Items) != 2 || string(r.Items[0].Value) != "three" || r.Items[1].Version != 0 {
		c.errorf("with one condition that does not hold: %+v", r)
	}
	r = c.commit(kv.Txn{
		If:   []kv.Cond{{Key: key, Version: kv.Any}, {Key: other, Version: 0}},
		Then: []kv.Write{{Key: key}, {Key: other, Value: []byte("x")}},
		Read: []string{key, other}, Else: []string{other},
	})
	if !r.OK || len(r.Items) != 2 || r.Items[0].Version != 0 || string(r.Items[1].Value) != "x" {
		c.errorf("a commit of two keys answered %+v", r)
	}
}

func versionsGrow(c *check) {
	key := c.key("k")
	var last uint64
	for range 3 {
		for i := range 3 {
			seen := uint64(0)
			if i > 0 {
				seen = last
			}
			v := c.put(key, "x", seen)
			item := c.get(c.d, key)
			if v <= last || item.Version != v || i == 0 && item.Created != v || i > 0 && item.Created >= v {
				c.errorf("version %d follows %d; the item is %+v", v, last, item)
			}
			last = v
		}
		c.commit(kv.Txn{If: []kv.Cond{{Key: key, Version: kv.Any}}, Then: []kv.Write{{Key: key}}})
		if i := c.get(c.d, key); i.Version != 0 {
			c.errorf("a deleted key reads as %+v", i)
		}
	}
}

func readsAfter(c *check) {
	other := c.e.Open(c.t)
	key := c.key("k")
	v := uint64(0)
	for i := range 20 {
		v = c.put(key, strconv.Itoa(i), v)
		if got := c.get(other, key); got.Version != v {
			c.errorf("another client reads version %d after %d was acknowledged", got.Version, v)
		}
	}
	r := c.commit(kv.Txn{If: []kv.Cond{{Key: key, Version: v}}, Then: []kv.Write{{Key: key, Value: []byte("last")}}, Read: []string{key}})
	if !r.OK || string(r.Items[0].Value) != "last" || r.Items[0].Version != r.Versions[0] {
		c.errorf("a read with a write answered %+v", r)
	}
}

func oneWins(c *check) {
	clients := []kv.Driver{c.d, c.e.Open(c.t)}
	key := c.key("k")
	v := c.put(key, "0", 0)
	for range 10 {
		wins := make(chan kv.Result, 8)
		for i := range cap(wins) {
			go func() {
				r, err := clients[i%2].Commit(c.ctx, kv.Txn{If: []kv.Cond{{Key: key, Version: v}}, Then: []kv.Write{{Key: key, Value: []byte(strconv.Itoa(i))}}})
				if err != nil {
					r = kv.Result{}
				}
				wins <- r
			}()
		}
		won, next := 0, v
		for range cap(wins) {
			if r := <-wins; r.OK {
				won++
				next = r.Versions[0]
			}
		}
		if won != 1 {
			c.errorf("%d commits from version %d were made", won, v)
			return
		}
		v = next
	}
}

func listed(c *check) {
	var want []string
	for i := range 25 {
		key := c.key(fmt.Sprintf("list-%02d", i))
		c.put(key, "x", 0)
		want = append(want, key)
	}
	c.put(c.key("other"), "x", 0)
	var got []string
	after := ""
	for {
		items, err := c.d.List(c.ctx, c.key("list-"), after, 10)
		c.must("list", err)
		for _, i := range items {
			got = append(got, i.Key)
			if i.Version == 0 || string(i.Value) != "x" {
				c.errorf("listed: %+v", i)
			}
		}
		if len(items) < 10 {
			break
		}
		after = items[len(items)-1].Key
	}
	if !slices.Equal(got, want) {
		c.errorf("listed %v, want %v", got, want)
	}
}

// watching reads a watch in a goroutine.
func (c *check) watching(tick time.Duration) (next func(what string) kv.Change) {
	changes := make(chan kv.Change, 1<<12)
	failed := make(chan error, 1)
	ctx, cancel := context.WithCancel(c.ctx)
	c.t.Cleanup(cancel)
	d := c.e.Open(c.t)
	go func() {
		for ch, err := range d.Watch(ctx, tick, c.prefix) {
			if err != nil {
				failed <- err
				return
			}
			changes <- ch
		}
	}()
	return func(what string) kv.Change {
		select {
		case ch := <-changes:
			return ch
		case err := <-failed:
			c.must(what, err)
		case <-time.After(c.e.Patience):
			c.errorf("%s: the watch was silent for %v", what, c.e.Patience)
			panic(giveUp{})
		}
		return kv.Change{}
	}
}

func watched(c *check) {
	next := c.watching(time.Hour)
	if ch := next("waiting for the beginning"); ch.Key != "" || ch.Tick {
		c.errorf("a watch begins with %+v", ch)
	}
	// until reads hints until one covers the key: a gap covers all.
	until := func(key string, gone bool, version uint64) {
		for {
			ch := next("waiting for a change of " + key)
			if ch.Key == "" && !ch.Tick {
				return
			}
			if ch.Key != key {
				continue
			}
			if ch.Item == nil || gone && ch.Item.Version == 0 || !gone && ch.Item.Version >= version {
				return
			}
		}
	}
	for i := range 5 {
		key := c.key(strconv.Itoa(i))
		v := c.put(key, "x", 0)
		until(key, false, v)
		v = c.put(key, "y", v)
		until(key, false, v)
		c.commit(kv.Txn{If: []kv.Cond{{Key: key, Version: v}}, Then: []kv.Write{{Key: key}}})
		until(key, true, 0)
	}
}

func ticks(c *check) {
	next := c.watching(20 * time.Millisecond)
	for range 3 {
		for ch := next("waiting for a tick"); !ch.Tick; ch = next("waiting for a tick") {
			continue
		}
	}
}

func indexGrows(c *check) {
	var last uint64
	v := uint64(0)
	for range 10 {
		r := c.commit(kv.Txn{If: []kv.Cond{{Key: c.key("k"), Version: v}}, Then: []kv.Write{{Key: c.key("k"), Value: []byte("x")}}})
		inc, err := c.d.Incarnation(c.ctx)
		c.must("incarnation", err)
		if r.Index < last || inc.Index < r.Index || inc.ID == "" || r.Incarnation != "" && r.Incarnation != inc.ID {
			c.errorf("index %d follows %d; the incarnation is %+v", r.Index, last, inc)
		}
		last, v = r.Index, r.Versions[0]
	}
}

func contexts(c *check) {
	ctx, cancel := context.WithCancel(c.ctx)
	cancel()
	_, commit := c.d.Commit(ctx, kv.Txn{Read: []string{c.key("k")}})
	_, list := c.d.List(ctx, c.prefix, "", 10)
	_, inc := c.d.Incarnation(ctx)
	for what, err := range map[string]error{"commit": commit, "list": list, "incarnation": inc} {
		if err == nil {
			c.errorf("%s answers although its context has ended", what)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range c.d.Watch(ctx, time.Hour, c.prefix) {
		}
	}()
	select {
	case <-done:
	case <-time.After(c.e.Patience):
		c.errorf("a watch goes on after its context")
	}
}

func (c *check) leaser() kv.Leaser { return c.d.(kv.Leaser) }

func (c *check) grant(ttl time.Duration) (string, time.Duration) {
	id, granted, err := c.leaser().Grant(c.ctx, fmt.Sprintf("%016x", rand.Uint64()>>1), ttl)
	c.must("grant", err)
	return id, granted
}

func (c *check) attach(id string) string {
	key := c.key("lease-" + id)
	r := c.commit(kv.Txn{If: []kv.Cond{{Key: key, Version: 0}}, Then: []kv.Write{{Key: key, Value: []byte("x"), Lease: id}}})
	if !r.OK {
		c.errorf("a key could not be attached: %+v", r)
	}
	return key
}

func grantRetried(c *check) {
	id, granted := c.grant(time.Minute)
	key := c.attach(id)
	again, ttl, err := c.leaser().Grant(c.ctx, id, time.Minute)
	c.must("grant again", err)
	if again != id || ttl != granted || c.get(c.d, key).Version == 0 {
		c.errorf("the same lease granted again is %s for %v, was %s for %v", again, ttl, id, granted)
	}
}

func leaseEnds(c *check) {
	begin := time.Now()
	id, granted := c.grant(c.d.Caps().MinTTL)
	key := c.attach(id)
	c.eventually("waiting for the end of a lease", func() bool { return c.get(c.d, key).Version == 0 })
	if took := time.Since(begin); took < granted-granted/50 {
		c.errorf("a lease of %v ended after %v", granted, took)
	} else if took > granted+c.e.Settle+time.Second {
		c.errorf("a lease of %v ended after %v only", granted, took)
	}
	if _, _, err := c.leaser().Renew(c.ctx, id, []string{key}); !errors.Is(err, kv.ErrNoLease) {
		c.errorf("the renewal of a dead lease answers %v", err)
	}
	r := c.commit(kv.Txn{Then: []kv.Write{{Key: key, Value: []byte("x"), Lease: id}}})
	if r.OK {
		c.errorf("a key was attached to a dead lease")
	}
}

func leaseRenewed(c *check) {
	id, granted := c.grant(c.d.Caps().MinTTL)
	key := c.attach(id)
	for begin := time.Now(); time.Since(begin) < 2*granted; time.Sleep(granted / 8) {
		ttl, r, err := c.leaser().Renew(c.ctx, id, []string{key})
		c.must("renew", err)
		if ttl <= 0 || ttl > granted || len(r.Items) != 1 || r.Items[0].Version == 0 {
			c.errorf("a renewal of %v answered %v, %+v", granted, ttl, r)
		}
	}
}

func leaseRevoked(c *check) {
	id, _ := c.grant(time.Minute)
	key := c.attach(id)
	for range 2 {
		c.must("revoke", c.leaser().Revoke(c.ctx, id))
	}
	if c.get(c.d, key).Version != 0 {
		c.errorf("the key of a revoked lease is there")
	}
	if _, _, err := c.leaser().Renew(c.ctx, id, []string{key}); !errors.Is(err, kv.ErrNoLease) {
		c.errorf("the renewal of a revoked lease answers %v", err)
	}
}
