package kv

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
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
	// Wall gives the begin and end times of terms. Default time.Now.
	Wall func() time.Time

	// The simulator sets random and spawn, so that it can repeat a run.
	random func() string
	spawn  func(func())
	plant  plant.Set
}

// Store is a store.Store over a Driver. Its methods are safe for concurrent use.
//
// Its memory is only a cache: every transaction that uses a cached value also compares it with
// the engine's.
type Store struct {
	driver Driver
	leaser Leaser // nil: observed expiry
	caps   Caps
	cfg    Config

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
	closes func() // closes the driver, if the store owns it

	mu       sync.Mutex
	meta     *meta
	sessions memo[store.SessionID, described]
	ended    memo[store.SessionID, store.Reason]
	openings memo[openingKey, opening]
	revoking int
	// requestSeen is when this process first saw a request, by "{session}/{request}".
	requestSeen memo[string, clock.Instant]
	own         memo[store.SessionID, bool] // opened by this process
	silences    map[store.SessionID]*silence

	// What is known about the deployment in this epoch. When an operator raises the epoch,
	// earlier losses of data no longer matter.
	name                     string // "": nothing is known yet
	epoch                    uint64
	engine                   string // the engine's incarnation
	metaCreated, metaVersion uint64 // of the key "meta"
	high                     uint64 // the highest index seen
	records                  memo[string, record]
	floors                   memo[string, fence.Token] // token floors are at least so high
	knowledge

	sentAt         clock.Instant // when the last read was sent; for a planted bug
	parsedRecords  parsed[record]
	parsedSessions parsed[described]

	feed *feed
}

// knowledge is what a store knows about losses of data.
type knowledge struct {
	lost   string // the proof that the engine lost data in this epoch; "": there is none
	raises uint64 // how often the store learned that the epoch was raised
}

var (
	_ store.Ruled   = (*Store)(nil)
	_ store.Retirer = (*Store)(nil)
)

// New returns a store over the driver. It reads the description of the deployment, or writes it
// at first use. The caller must call Close.
func New(ctx context.Context, d Driver, cfg Config) (*Store, error) {
	return newStore(d, cfg).opened(ctx)
}

// Open is New for a driver that belongs to the store: Close closes the driver, and so does Open
// if it fails.
func Open(ctx context.Context, d interface {
	Driver
	Close()
}, cfg Config) (*Store, error) {
	s := newStore(d, cfg)
	s.closes = d.Close
	return s.opened(ctx)
}

func (s *Store) opened(ctx context.Context) (*Store, error) {
	if _, err := s.loadMeta(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Planted returns the configuration with bugs, for tests.
func (c Config) Planted(p plant.Set) Config {
	c.plant = p
	return c
}

// NewSimulated returns a store for the simulator, without a call to the engine. Ids come from
// random, and the store starts goroutines only through spawn, so that a run can be repeated.
func NewSimulated(d Driver, cfg Config, random func() string, spawn func(func())) *Store {
	cfg.random, cfg.spawn = random, spawn
	return newStore(d, cfg)
}

func newStore(d Driver, cfg Config) *Store {
	if cfg.Drift == 0 {
		cfg.Drift = 0.02
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
	s := &Store{
		driver: d, caps: d.Caps(), cfg: cfg, silences: map[store.SessionID]*silence{},
		parsedRecords: parsed[record]{parse: decodeRecord}, parsedSessions: parsed[described]{parse: decodeSession},
	}
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

// Close ends all watches, makes later calls fail, and waits for the store's goroutines.
// Sessions stay alive until they expire.
func (s *Store) Close() {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.work.Wait()
	if s.closes != nil {
		s.closes()
	}
}

// start runs f in the background, unless the store is closed. s.mu is held.
func (s *Store) start(f func()) bool {
	if s.ctx.Err() != nil {
		return false
	}
	s.cfg.spawn(f)
	return true
}

// ErrClosed is returned by every call after Close.
var ErrClosed = errors.New("kv: the store is closed")

// Caps implements store.Store.
func (s *Store) Caps() store.Caps { return s.caps.Store() }

func (s *Store) batch() int { return s.caps.Store().Batch }

// openedHere reports whether this process opened the session.
func (s *Store) openedHere(id store.SessionID) bool {
	own, _ := s.own.get(id)
	return own
}

func (s *Store) deployment() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.name
}

// plan is a change of several keys. If the engine can, run makes it in one transaction. If a
// transaction has only one key, run checks the guards, makes the first writes, and then makes
// the deciding writes one by one. This is as safe, because a session that died never returns.
// A grant is only prepared in this case: see settle.
type plan struct {
	guard  []Cond  // on keys that the plan does not write
	under  []Cond  // conditions of a grant that must still hold when it takes effect
	first  []Write // harmless if a deciding write fails
	decide []step
	last   []Write // harmless if they are lost
	read   []string
	show   []string // keys to read if the plan fails
}

type step struct {
	Cond
	Write
}

// run makes a plan. The versions of the result are those of the deciding writes.
func (s *Store) run(ctx context.Context, p plan) (Result, error) {
	if s.caps.Keys == 1 {
		return s.runOneKey(ctx, p)
	}
	t := Txn{If: slices.Concat(p.guard, p.under), Read: p.read, Else: p.show}
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
	ok, err := s.hold(ctx, slices.Concat(p.guard, p.under))
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
	if r.OK = true; p.under == nil {
		s.finish(ctx, p)
	}
	r.Items, err = s.read(ctx, p.read...)
	return r, err
}

// finish makes the last writes of a plan. If one fails, a sweep removes the key later.
func (s *Store) finish(ctx context.Context, p plan) {
	for _, w := range p.last {
		_, _ = s.commit(ctx, Txn{Then: []Write{w}})
	}
}

// hold reports whether the guards hold. It waits while a conditional close is under way.
func (s *Store) hold(ctx context.Context, guards []Cond) (ok bool, err error) {
	for range closingTries {
		if ok, err = s.holdsNow(ctx, guards); !errors.Is(err, errClosing) {
			break
		}
	}
	return ok, err
}

func (s *Store) holdsNow(ctx context.Context, guards []Cond) (bool, error) {
	keys := make([]string, len(guards))
	for i, g := range guards {
		keys[i] = g.Key
	}
	items, err := s.read(ctx, keys...)
	for i := range items {
		if !guards[i].Holds(items[i].Version) {
			return false, nil
		}
	}
	if slices.ContainsFunc(items, func(i Item) bool { return strings.HasPrefix(i.Key, beatAt) && beatOf(i).Closing }) {
		return false, errClosing
	}
	return err == nil, err
}

// errClosing means that a conditional close of the session is under way. It soon succeeds or
// fails; closingTries bounds the reads until then.
var errClosing = errors.New("kv: the session is being closed")

const closingTries = 100

// read reads keys, as many in one call as the engine allows.
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

// baseline is what the store knew when it sent a call. An older answer proves lost data.
type baseline struct {
	epoch, high, meta uint64
	records           []record // of the keys that are read, in their order
}

func (s *Store) baseline(keys ...[]string) baseline {
	s.mu.Lock()
	defer s.mu.Unlock()
	base := baseline{epoch: s.epoch, high: s.high, meta: s.metaVersion}
	for _, key := range slices.Concat(keys...) {
		var r record
		if group, ok := strings.CutPrefix(key, recordAt); ok {
			r, _ = s.records.get(group)
		}
		base.records = append(base.records, r)
	}
	return base
}

// commit is one call to the engine.
func (s *Store) commit(ctx context.Context, t Txn) (Result, error) {
	if s.ctx.Err() != nil {
		return Result{}, ErrClosed
	}
	base, sent := s.baseline(t.Read, t.Else), s.sends()
	r, err := s.driver.Commit(ctx, t)
	if err != nil {
		return Result{}, err
	}
	s.markEnded(r.Items)
	s.checkAnswer(r, base)
	s.readSent(sent)
	return r, nil
}

// markEnded sets the version of beats of ended sessions to 0, as if they were deleted, and notes
// why the sessions ended.
func (s *Store) markEnded(items []Item) {
	for i := range items {
		id, ok := strings.CutPrefix(items[i].Key, beatAt)
		if !ok || items[i].Version == 0 {
			continue
		}
		if why := beatOf(items[i]).Ended; why != "" {
			items[i].Version = 0
			s.noteEnd(store.SessionID(id), why)
		}
	}
}

func (s *Store) noteEnd(id store.SessionID, why store.Reason) {
	s.ended.put(id, why)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.silences, id)
}

// alive is the value of a living session's beat.
var alive = []byte("{}")

func beatOf(i Item) (j beatJSON) {
	if !bytes.Equal(i.Value, alive) {
		_ = json.Unmarshal(i.Value, &j)
	}
	return j
}

// checkAnswer notices an engine that lost data: its answer is older than what the store knew when
// it sent the call, or comes from another engine. If the epoch was raised since then, the answer
// may be from before and proves nothing.
func (s *Store) checkAnswer(r Result, base baseline) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.epoch != base.epoch:
		return
	case r.Index != 0 && r.Index < base.high:
		s.noteLoss("the engine went back from index %d to %d: it was restored from a backup", base.high, r.Index)
	case r.Incarnation != "" && s.engine != "" && r.Incarnation != s.engine:
		s.meta = nil // the next loadMeta finds out whether data was lost
	default:
		s.high = max(s.high, r.Index)
	}
	for i, item := range r.Items {
		if strings.HasPrefix(item.Key, recordAt) {
			s.sawRecord(item, base.records[i])
		}
	}
}

// sawRecord caches a record that was read, or notes that data was lost. before is the record
// that was known when the read was sent. s.mu is held.
func (s *Store) sawRecord(i Item, before record) {
	known, _ := s.records.get(strings.TrimPrefix(i.Key, recordAt))
	r, err := s.parsedRecords.get(i)
	if err != nil {
		return
	}
	r.read = true
	switch {
	case before.read && r.Version == 0 && floorKey(r.Group) != "":
		s.gone(before)
	case before.read && r.stored == 0:
		s.noteLoss("the record of group %q (token %d) was deleted", r.Group, before.Token)
	case before.read && (r.stored < before.stored || r.Token < before.Token):
		s.noteLoss("the record of group %q went back from token %d to %d", r.Group, before.Token, r.Token)
	case r.stored > known.stored || r.stored == known.stored && r.stored != 0 && !known.read:
		s.records.put(r.Group, r)
	}
}

// noteLoss notes that the engine lost data. The first reason is kept. s.mu is held.
func (s *Store) noteLoss(format string, args ...any) {
	s.lost, s.meta = cmp.Or(s.lost, fmt.Sprintf(format, args...)), nil
}

// engineFailed returns an error if the engine has lost data or was replaced. The outcome of a
// grant is unknown then, whatever the engine answered. s.mu is held.
func (s *Store) engineFailed(r Result) error {
	switch {
	case s.lost != "":
		return fmt.Errorf("kv: the engine lost data during the call: %s", s.lost)
	case r.Incarnation != "" && r.Incarnation != s.engine:
		return fmt.Errorf("kv: the engine changed during the call from %s to %s", s.engine, r.Incarnation)
	}
	return nil
}

// report writes a loss of data into the deployment's description, for all clients.
func (s *Store) report(ctx context.Context) error {
	s.mu.Lock()
	lost := s.lost != "" && s.meta == nil
	s.mu.Unlock()
	if !lost {
		return nil
	}
	_, err := s.loadMeta(ctx)
	return err
}

// resetKnown drops what was known before an operator raised the epoch. s.mu is held.
func (s *Store) resetKnown(m *meta) {
	if s.name != "" {
		s.raises++
	}
	s.name, s.epoch, s.engine, s.high, s.lost = m.Deployment, m.Epoch, m.Incarnation, m.index, ""
	s.metaCreated, s.metaVersion = m.created, m.version
	s.sessions.clear()
	s.ended.clear()
	s.records.clear()
	s.floors.clear()
	clear(s.silences)
}

// memo is a bounded cache. When it is full, it drops all entries. It is safe for concurrent use.
type memo[K comparable, V any] struct {
	mu sync.Mutex
	m  map[K]V
}

const memoMost = 1 << 16

func (m *memo[K, V]) put(k K, v V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.m == nil || len(m.m) >= memoMost {
		m.m = map[K]V{}
	}
	m.m[k] = v
}

func (m *memo[K, V]) get(k K) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.m[k]
	return v, ok
}

func (m *memo[K, V]) drop(k K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.m, k)
}

func (m *memo[K, V]) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.m = nil
}

// parsed caches decoded items, because most are read many times in one version.
type parsed[V any] struct {
	parse func(Item) (V, error)
	known memo[string, parsedItem[V]]
}

type parsedItem[V any] struct {
	item  Item
	value V
}

func (p *parsed[V]) get(i Item) (V, error) {
	// An engine that lost data may use a version again for another value.
	if k, ok := p.known.get(i.Key); ok && k.item.Version == i.Version && k.item.Created == i.Created && bytes.Equal(k.item.Value, i.Value) {
		return k.value, nil
	}
	v, err := p.parse(i)
	if err == nil && i.Version != 0 {
		p.known.put(i.Key, parsedItem[V]{i, v})
	}
	return v, err
}

// nextToken returns the token after the one in the record and the floor.
func (s *Store) nextToken(r record, floor fence.Token, epoch uint64) (fence.Token, error) {
	r.Token = max(r.Token, floor)
	if s.cfg.plant.Has(plant.TokenReset) && r.Holder == "" {
		r.Token = 0
	}
	if s.cfg.plant.Has(plant.EpochIgnored) {
		epoch = r.Token.Epoch()
	}
	t, err := r.Token.Next(epoch)
	if err != nil {
		return 0, fmt.Errorf("kv: group %q: %w: %w", r.Group, store.ErrBusy, err)
	}
	return t, nil
}
