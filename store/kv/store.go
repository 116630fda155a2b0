package kv

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
)

// Config sets what a Store does not take from its driver. The zero value is complete.
type Config struct {
	// Deployment names a store that is used for the first time. Default: random.
	Deployment string
	// Drift bounds how much the clock rates of two processes differ. Observed expiry
	// waits that much longer than the TTL. Default 0.02, as in lease.Default.
	Drift float64
	// Clock measures how long sessions are silent. Default clock.System().
	Clock clock.Clock
	// Wall tells people's time, for terms. Default time.Now.
	Wall func() time.Time

	// random and spawn are the simulator's: without them it could not repeat a run.
	random func() string
	spawn  func(func())
	plant  plant.Set
}

// Store is a lease.Store over a Driver. Its methods are safe for concurrent use.
//
// What it keeps in memory saves round trips and never decides: whatever is used from there
// is compared in the transaction that uses it.
type Store struct {
	driver Driver
	leaser Leaser // nil: observed expiry
	caps   Caps
	cfg    Config

	ctx    context.Context // ends with Shutdown
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu        sync.Mutex
	meta      *meta
	name      string // of the deployment, once it is known
	high      uint64 // the highest index seen, under highEpoch
	highEpoch uint64
	lost      string // what proves that the engine lost data, "": nothing
	sessions  memo[lease.SessionID, described]
	ended     memo[lease.SessionID, lease.Reason]
	records   memo[string, record]
	opening   memo[string, string] // attempt: the lease that its Open uses
	asked     memo[string, clock.Instant]
	own       memo[lease.SessionID, bool] // opened here
	silences  map[lease.SessionID]*silence

	feed *feed
}

var _ lease.Ruled = (*Store)(nil)

// New returns a store over the driver. It reads, or at first use writes, what describes
// the deployment. Shutdown ends it.
func New(ctx context.Context, d Driver, cfg Config) (*Store, error) {
	s := newStore(d, cfg)
	if _, err := s.loadMeta(ctx); err != nil {
		s.Shutdown()
		return nil, err
	}
	return s, nil
}

func newStore(d Driver, cfg Config) *Store {
	if cfg.Drift == 0 {
		cfg.Drift = lease.Default().Drift
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.System()
	}
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	if cfg.random == nil {
		cfg.random = randomID
	}
	s := &Store{driver: d, caps: d.Caps(), cfg: cfg, silences: map[lease.SessionID]*silence{}}
	if s.caps.Native {
		s.leaser = d.(Leaser)
	}
	if s.cfg.spawn == nil {
		s.cfg.spawn = func(f func()) { s.work.Go(f) }
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.feed = newFeed(s)
	return s
}

func randomID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] &= 0x7f           // engines may use a signed number
	return hex.EncodeToString(b[:])
}

// Shutdown ends watches and later calls, and waits for everything that the store started.
// Sessions live on until they expire.
func (s *Store) Shutdown() {
	s.cancel()
	s.work.Wait()
}

// ErrShutdown is the answer of a store after Shutdown.
var ErrShutdown = errors.New("kv: the store was shut down")

// Caps implements lease.Store.
func (s *Store) Caps() lease.Caps {
	return lease.Caps{
		MinTTL: s.caps.MinTTL, MaxTTL: s.caps.MaxTTL, Batch: s.batch(), Observed: !s.caps.Native, Lateness: s.caps.Lateness, Loses: s.caps.Loses,
	}
}

// batch is how many records fit one transaction: each may have a holder's beat to look at
// and a term that moves to the history; meta, two beats and a session come on top.
func (s *Store) batch() int {
	if s.caps.Keys == 1 {
		return 1
	}
	return max(1, (s.caps.Keys-8)/3)
}

// mine reports whether this process opened the session.
func (s *Store) mine(id lease.SessionID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	own, _ := s.own.get(id)
	return own
}

func (s *Store) deployment() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.name
}

// plan is a change that one or more deciding keys make or refuse. Where the engine can, it
// is one transaction; where a transaction has one key only, its parts are made one after
// the other, and that is as good because a session that died never returns:
// the guards are checked, what is harmless is written first, the decision is made, and
// the guards that must hold at the decision are checked again.
type plan struct {
	guard  []Cond  // on keys that the plan does not write
	again  int     // how many of them are checked again after the decision
	first  []Write // harmless if the decision fails
	decide []step
	last   []Write // harmless if it is lost
	read   []string
	show   []string // read only if the plan fails
}

type step struct {
	Cond
	Write
}

// errAfter: the decision was made, but a guard no longer held right after it.
type guardError struct{ key string }

func (e *guardError) Error() string { return "kv: " + e.key + " changed during the call" }

// run makes a plan. The versions of the result are those of the decisions.
func (s *Store) run(ctx context.Context, p plan) (Result, error) {
	if s.caps.Keys == 1 {
		return s.runOneKey(ctx, p)
	}
	t := Txn{If: p.guard, Read: p.read, Else: p.show}
	t.Then = append(t.Then, p.first...)
	for _, d := range p.decide {
		t.If = append(t.If[:len(t.If):len(t.If)], d.Cond)
		t.Then = append(t.Then, d.Write)
	}
	t.Then = append(t.Then, p.last...)
	r, err := s.commit(ctx, t)
	if err == nil && r.OK {
		r.Versions = r.Versions[len(p.first) : len(p.first)+len(p.decide)]
	}
	return r, err
}

func (s *Store) runOneKey(ctx context.Context, p plan) (Result, error) {
	var r Result
	fail := func() (Result, error) {
		items, err := s.read(ctx, append(p.read[:len(p.read):len(p.read)], p.show...)...)
		return Result{Items: items}, err
	}
	ok, err := s.hold(ctx, p.guard)
	if err != nil {
		return r, err
	}
	if !ok {
		return fail()
	}
	for _, w := range p.first {
		if _, err := s.commit(ctx, Txn{Then: []Write{w}}); err != nil {
			return r, err
		}
	}
	for _, d := range p.decide {
		c, err := s.commit(ctx, Txn{If: []Cond{d.Cond}, Then: []Write{d.Write}})
		if err != nil {
			return r, err
		}
		if !c.OK {
			return fail()
		}
		r.Versions = append(r.Versions, c.Versions...)
		r.Index = max(r.Index, c.Index)
	}
	if ok, err := s.hold(ctx, p.guard[:p.again]); err != nil {
		return r, err
	} else if !ok {
		return r, &guardError{p.guard[0].Key}
	}
	for _, w := range p.last {
		_, _ = s.commit(ctx, Txn{Then: []Write{w}}) // a sweep removes what stays
	}
	r.OK = true
	r.Items, err = s.read(ctx, p.read...)
	return r, err
}

func (s *Store) hold(ctx context.Context, guards []Cond) (bool, error) {
	keys := make([]string, len(guards))
	for i, g := range guards {
		keys[i] = g.Key
	}
	items, err := s.read(ctx, keys...)
	for i := range items {
		if !guards[i].holds(items[i].Version) || bytes.Equal(items[i].Value, closing) {
			return false, err
		}
	}
	return err == nil, err
}

// read reads keys, as many at once as the engine can.
func (s *Store) read(ctx context.Context, keys ...string) ([]Item, error) {
	var items []Item
	for len(keys) > 0 {
		n := min(len(keys), s.caps.Keys)
		r, err := s.commit(ctx, Txn{Read: keys[:n]})
		if err != nil {
			return nil, err
		}
		items = append(items, r.Items...)
		keys = keys[n:]
	}
	return items, nil
}

// commit is one call to the engine. It notices an engine that went back: no answer may be
// older than what was known when it was asked for.
func (s *Store) commit(ctx context.Context, t Txn) (Result, error) {
	if s.ctx.Err() != nil {
		return Result{}, ErrShutdown
	}
	s.mu.Lock()
	known, before := s.high, s.versions(t.Read, t.Else)
	s.mu.Unlock()
	r, err := s.driver.Commit(ctx, t)
	if err != nil {
		return Result{}, err
	}
	s.saw(r.Index, known)
	for i, item := range r.Items {
		s.sawItem(item, before[i])
	}
	return r, nil
}

// versions are those of the records among the keys that are known now. s.mu is held.
func (s *Store) versions(keys ...[]string) []uint64 {
	var all []uint64
	for _, key := range slices.Concat(keys...) {
		r, _ := s.records.get(strings.TrimPrefix(key, recordAt))
		all = append(all, r.Version)
	}
	return all
}

// saw remembers the highest index, and that an answer was older than what was known.
func (s *Store) saw(index, known uint64) {
	if index == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if index < known {
		s.proves(fmt.Sprintf("the engine answered at index %d after it had answered at index %d", index, known))
		return
	}
	s.high = max(s.high, index)
}

// sawItem notices a record that was deleted or went back: before is the version of it that
// was known when the read was sent.
func (s *Store) sawItem(i Item, before uint64) {
	if _, ok := strings.CutPrefix(i.Key, recordAt); !ok {
		return
	}
	r, err := decodeRecord(i)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known, _ := s.records.get(r.Group)
	switch {
	case r.Version < before:
		s.proves(fmt.Sprintf("the record of group %q went back from version %d to %d", r.Group, before, r.Version))
	case r.Version > known.Version:
		if r.Token < known.Token {
			s.proves(fmt.Sprintf("the token of group %q fell from %d to %d", r.Group, known.Token, r.Token))
		}
		s.records.put(r.Group, r)
	}
}

// proves notes that the engine lost data. s.mu is held.
func (s *Store) proves(what string) {
	if s.lost == "" {
		s.lost, s.meta = what, nil
	}
}

// forgets clears what was known before the engine lost data, once the epoch was raised.
// Tokens are kept: none of them may be granted again. s.mu is held.
func (s *Store) forgets(index, epoch uint64) {
	s.lost, s.high, s.highEpoch = "", index, epoch
	s.sessions, s.ended, s.records = memo[lease.SessionID, described]{}, memo[lease.SessionID, lease.Reason]{}, memo[string, record]{}
	clear(s.silences)
}

// memo is a map with a bound: beyond it, it begins anew.
type memo[K comparable, V any] struct{ m map[K]V }

const memoMost = 1 << 16

func (m *memo[K, V]) put(k K, v V) {
	if m.m == nil || len(m.m) >= memoMost {
		m.m = map[K]V{}
	}
	m.m[k] = v
}

func (m *memo[K, V]) get(k K) (V, bool) {
	v, ok := m.m[k]
	return v, ok
}

// nextToken follows the token that the store has read.
func nextToken(r record, epoch uint64) (fence.Token, error) {
	t, err := r.Token.Next(epoch)
	if err != nil {
		return 0, fmt.Errorf("kv: group %q: %w: %w", r.Group, lease.ErrBusy, err)
	}
	return t, nil
}
