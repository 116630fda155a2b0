package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/internal/policy"
	"github.com/tenurehq/tenure/internal/shardhook"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
)

// Config describes a set. Set and Count are required, and the same in all processes.
type Config struct {
	// Set names the shards: shard 17 of "orders" is the group "orders-17". The node's scope must
	// have "orders-*".
	Set string
	// Count is how many shards there are, at most MaxCount.
	Count int
	// Weight is this process's share of the shards, in proportion to the other weights. At most
	// MaxWeight. Default: what Weigh has set, or 1.
	Weight int
	// Max is how many shards this process owns at most. Default: no limit.
	Max int
	// MaxMoves is how many shards this process hands over at a time. Default 32.
	MaxMoves int
	// Settle is how long a candidate must have lived before shards are moved to it, and how long a
	// shard stays with a new owner before it is moved again. Default 4 s, at least 100 ms.
	Settle time.Duration

	plant plant.Set
}

func (c Config) resolve(scope store.Scope) (Config, error) {
	if c.MaxMoves == 0 {
		c.MaxMoves = 32
	}
	if c.Settle == 0 {
		c.Settle = 4 * time.Second
	}
	bad := func(field string, value any, rule string) (Config, error) {
		return c, &store.ArgumentError{Field: field, Value: value, Rule: rule}
	}
	switch longest := Group(c.Set, MaxCount); {
	case !store.ValidName(c.Set) || !store.ValidName(longest):
		return bad("Set", c.Set, "1 to 56 of a-z 0-9 . _ -, beginning with a letter or digit")
	case c.Count < 1 || c.Count > MaxCount:
		return bad("Count", c.Count, fmt.Sprintf("from 1 to %d", MaxCount))
	case c.Weight < 0 || c.Weight > MaxWeight:
		return bad("Weight", c.Weight, fmt.Sprintf("from 1 to %d, or 0 (what Weigh has set)", MaxWeight))
	case c.Max < 0:
		return bad("Max", c.Max, "0 (no limit) or more")
	case c.MaxMoves < 1:
		return bad("MaxMoves", c.MaxMoves, "1 or more")
	case c.Settle < 100*time.Millisecond:
		return bad("Settle", c.Settle, "100ms or more, or 0 (the default)")
	case !scope.Covers(Group(c.Set, 0)) || !scope.Covers(Group(c.Set, c.Count-1)):
		return bad("Set", c.Set, fmt.Sprintf("the node's scope must have %q", c.Set+"-*"))
	}
	return c, nil
}

// Shard is what the work of one shard gets.
type Shard struct {
	Set   string
	Index int
	Term  *tenure.Term
}

// errMove is the cause of the context of work whose shard is moved.
var errMove = errors.New("shard: the shard moves to another process")

// Run owns this process's part of the shards of a set until ctx ends, and calls work for each in a
// goroutine of its own. Then it hands everything over. It returns the cause of ctx, why it could not
// begin, or why it cannot go on: the node was closed, or others run the set with another count.
//
// Work gets a context that ends when the shard is no longer this process's, and should return soon
// after. Work that returns before has given up: another process gets the shard, and this one waits
// for a while before it takes the shard again.
func Run(ctx context.Context, node *lease.Node, cfg Config, work func(context.Context, Shard) error) error {
	n := shardhook.Of(node)
	cfg, err := cfg.resolve(n.Scope)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &runner{
		quit: cancel,
		cfg:  cfg, node: n, work: work, log: n.Log.With("set", cfg.Set), ctx: ctx,
		shards: make([]owned, cfg.Count), born: map[store.SessionID]clock.Instant{}, moves: make(chan struct{}, cfg.MaxMoves),
	}
	if err := r.agree(ctx); err != nil {
		return err
	}
	n.Rank(cfg.Set, r.rank)
	defer n.Rank(cfg.Set, nil)
	for i := range r.shards {
		r.stand(i)
	}
	tick := time.NewTicker(cfg.Settle / 4)
	defer tick.Stop()
	for n := 1; ctx.Err() == nil; n++ {
		select {
		case <-tick.C:
			if n%4 == 0 {
				r.readRules(ctx)
			}
			r.rebalance()
			r.announce(ctx)
		case <-ctx.Done():
		}
	}
	r.stop()
	return context.Cause(ctx)
}

// runner is one process's part of a set.
type runner struct {
	cfg   Config
	node  shardhook.Node
	work  func(context.Context, Shard) error
	log   *slog.Logger
	ctx   context.Context
	quit  context.CancelCauseFunc // ends Run
	moves chan struct{}           // holds one value per move in progress
	busy  sync.WaitGroup

	rules atomic.Pointer[Rules]

	mu       sync.Mutex
	cordoned map[string]bool
	born     map[store.SessionID]clock.Instant // when a session was first seen here
	shards   []owned
	owns     int
	stopping bool
	warned   clock.Instant   // when the last failed campaign was logged
	full     store.SessionID // what announce has written last
}

// owned is what this process knows of a shard.
type owned struct {
	standing bool
	term     *tenure.Term
	since    clock.Instant           // when the term began
	cancel   context.CancelCauseFunc // of the work
	to       string                  // the candidate that it is moved to
	slot     bool                    // it counts as one of the moves
	paused   bool                    // its work has failed
	moved    clock.Instant           // when it was moved last
	stay     time.Duration           // how long it stays at least; longer if it came back
	fails    int
}

// agree checks that the other processes have the same count, and stores this process's weight.
func (r *runner) agree(ctx context.Context) error {
	for {
		st, name := r.node.Store, setName(r.cfg.Set)
		a, err := st.Attributes(ctx, name)
		if err != nil {
			return fmt.Errorf("shard: reading the set %q: %w", r.cfg.Set, err)
		}
		was, _ := strconv.Atoi(a.Values[countKey])
		if was == r.cfg.Count {
			break
		}
		if was != 0 {
			if err := r.alone(ctx, was); err != nil {
				return err
			}
		}
		a.Values = map[string]string{countKey: strconv.Itoa(r.cfg.Count)}
		if _, err := st.SetAttributes(ctx, a); err != nil && !errors.Is(err, store.ErrConflict) {
			return fmt.Errorf("shard: setting the count of the set %q: %w", r.cfg.Set, err)
		}
	}
	rules, err := ReadRules(ctx, r.node.Store, r.cfg.Set)
	if err != nil {
		return fmt.Errorf("shard: reading the set %q: %w", r.cfg.Set, err)
	}
	if was, set := rules.Weights[r.node.Candidate.ID]; r.cfg.Weight != 0 && (set && was != float64(r.cfg.Weight) || !set && r.cfg.Weight != 1) {
		if err := Weigh(ctx, r.node.Store, r.cfg.Set, r.node.Candidate.ID, r.cfg.Weight); err != nil {
			return err
		}
		rules.Weights[r.node.Candidate.ID] = float64(r.cfg.Weight)
	}
	r.rules.Store(&rules)
	return nil
}

// alone fails if another process runs the set with another count.
func (r *runner) alone(ctx context.Context, was int) error {
	line, err := r.node.Store.Sessions(ctx, store.Scope{Group(r.cfg.Set, 0)}, store.Page{})
	if err != nil {
		return fmt.Errorf("shard: reading who runs the set %q: %w", r.cfg.Set, err)
	}
	for _, s := range line {
		if s.Candidate.ID != r.node.Candidate.ID {
			return &store.ArgumentError{Field: "Count", Value: r.cfg.Count, Rule: fmt.Sprintf("%s runs the set %q with %d shards: stop all processes of the set before you change the number", s.Candidate.ID, r.cfg.Set, was)}
		}
	}
	return nil
}

// rank returns the number by which the node orders the candidates of a group.
func (r *runner) rank(group, candidate string) (float64, bool) {
	set, index := Parse(group)
	if set != r.cfg.Set || index >= r.cfg.Count {
		return 0, false
	}
	return r.rules.Load().rank(r.cfg.Set, index, candidate), true
}

// readRules reads weights, pins and cordons again.
func (r *runner) readRules(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Settle)
	defer cancel()
	rules, err := ReadRules(ctx, r.node.Store, r.cfg.Set)
	if err == nil { // otherwise the old ones apply
		if was := r.rules.Swap(&rules); !was.equal(rules) {
			r.log.Info("shard: weights or pins have changed")
		}
		// Two processes that start at the same moment do not see each other in agree. With two
		// counts a key would have two owners, so only the process that wrote last continues.
		if rules.Count != 0 && rules.Count != r.cfg.Count {
			r.quit(&store.ArgumentError{Field: "Count", Value: r.cfg.Count, Rule: fmt.Sprintf("others run the set %q with %d shards", r.cfg.Set, rules.Count)})
			return
		}
	}
	cordoned := map[string]bool{}
	err = each(ctx, r.node.Store, policy.Node(""), func(a store.Attributes) {
		id := strings.TrimPrefix(a.Name, policy.Node(""))
		if (policy.Claim{Node: id}).Cordon(a.Values) != nil {
			cordoned[id] = true
		}
	})
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cordoned = cordoned
}

// stand campaigns for a shard.
func (r *runner) stand(i int) {
	r.mu.Lock()
	s := &r.shards[i]
	if r.stopping || s.standing || s.paused || s.term != nil || r.over(r.owns+1) {
		r.mu.Unlock()
		return
	}
	s.standing = true
	r.busy.Add(1)
	r.mu.Unlock()
	r.node.Stand(Group(r.cfg.Set, i), func(term *tenure.Term, err error) { r.stood(i, term, err) })
}

// over reports whether owns is more than Max.
func (r *runner) over(owns int) bool {
	return r.cfg.Max > 0 && owns > r.cfg.Max && !r.cfg.plant.Has(plant.CapIgnored)
}

// stood handles the outcome of a campaign. It does not block.
func (r *runner) stood(i int, term *tenure.Term, err error) {
	r.mu.Lock()
	s := &r.shards[i]
	s.standing = false
	if term == nil {
		stopping, now := r.stopping, r.node.Clock.Now()
		warn := r.warned == 0 || now.Sub(r.warned) > time.Minute // once, and not for each of thousands
		if warn && err != nil {
			r.warned = now
		}
		r.mu.Unlock()
		r.busy.Done()
		switch {
		case err == nil || stopping:
		case errors.Is(err, lease.ErrClosed):
			r.quit(err)
		default:
			if warn {
				r.log.Warn("shard: campaigns fail, and are tried again", "shard", i, "error", err)
			}
			time.AfterFunc(time.Second, func() { r.stand(i) })
		}
		return
	}
	ctx, cancel := context.WithCancelCause(term.Context())
	s.term, s.since, s.cancel, s.to = term, r.node.Clock.Now(), cancel, ""
	if s.stay > 0 && s.since.Sub(s.moved) <= 2*s.stay {
		s.stay = min(2*s.stay, maxStay) // the candidate that it was moved to has given it back
	} else {
		s.stay = r.cfg.Settle
	}
	r.owns++
	full := r.over(r.owns + 1)
	switch {
	case r.stopping:
		cancel(context.Cause(r.ctx))
	case r.over(r.owns):
		cancel(errMove) // the sender did not know yet that this process is full
	}
	r.mu.Unlock()
	if full {
		go r.withdrawAll()
	}
	go r.own(ctx, i, term)
}

// announce tells the others whether this process owns as many shards as it may, so that they do not
// move shards to it that it would give back.
func (r *runner) announce(ctx context.Context) {
	r.mu.Lock()
	full := store.SessionID("")
	if r.over(r.owns + 1) {
		for _, s := range r.node.Sessions() {
			if s.Candidate.ID == r.node.Candidate.ID {
				full = s.ID
			}
		}
	}
	r.mu.Unlock()
	if full == r.full {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Settle)
	defer cancel()
	if set1(ctx, r.node.Store, fullName(r.cfg.Set, r.node.Candidate.ID), sessionKey, string(full)) == nil {
		r.full = full
	}
}

// withdrawAll ends all campaigns: this process is full, or stops.
func (r *runner) withdrawAll() {
	for i := range r.shards {
		r.mu.Lock()
		standing := r.shards[i].standing
		r.mu.Unlock()
		if standing {
			r.node.Withdraw(Group(r.cfg.Set, i))
		}
	}
}

// own runs the work of a shard, and then gives it up.
func (r *runner) own(ctx context.Context, i int, term *tenure.Term) {
	defer r.busy.Done()
	err := context.Cause(ctx)
	if err == nil {
		err = r.work(ctx, Shard{Set: r.cfg.Set, Index: i, Term: term})
	}
	line := r.node.Sessions()
	r.mu.Lock()
	s := &r.shards[i]
	moved := ctx.Err() != nil
	s.cancel(nil)
	to := s.to
	if to == "" {
		to = r.first(i, r.settled(line, r.node.Clock.Now()), r.node.Candidate.ID)
	}
	if moved {
		s.fails = 0
	} else {
		s.fails++
	}
	fails := s.fails
	s.paused = !moved
	r.mu.Unlock()

	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if to == "" || term.TransferTo(release, to) != nil {
		_ = term.Resign(release)
	}
	r.mu.Lock()
	if s.slot {
		<-r.moves
	}
	s.term, s.to, s.slot = nil, "", false
	r.owns--
	r.mu.Unlock()
	r.standAll()
	if moved {
		r.stand(i)
		return
	}
	pause := backoff(fails)
	r.log.Warn("shard: work has returned before its term ended; another process gets the shard", "shard", i, "error", err, "pause", pause)
	time.AfterFunc(pause, func() {
		r.mu.Lock()
		s.paused = false
		r.mu.Unlock()
		r.stand(i)
	})
}

// standAll campaigns for all shards again, after this process was full.
func (r *runner) standAll() {
	if r.cfg.Max == 0 {
		return
	}
	for i := range r.shards {
		r.stand(i)
	}
}

// maxStay limits how long a shard stays with an owner that is not the first.
const maxStay = 10 * time.Minute

// releaseTimeout limits the handover of a shard. After that the shard is free when the session ends.
const releaseTimeout = 10 * time.Second

func backoff(fails int) time.Duration {
	most := min(200*time.Millisecond<<min(fails, 10), 30*time.Second)
	return most/2 + rand.N(most/2)
}

// rebalance moves shards to the candidates that should own them.
func (r *runner) rebalance() {
	now, line := r.node.Clock.Now(), r.node.Sessions()
	r.mu.Lock()
	defer r.mu.Unlock()
	born := map[store.SessionID]clock.Instant{}
	for _, s := range line {
		first, known := r.born[s.ID]
		if !known {
			first = now
		}
		born[s.ID] = first
	}
	r.born = born
	settled := r.settled(line, now)
	for i := range r.shards {
		s := &r.shards[i]
		if s.term == nil || s.to != "" || now.Sub(s.since) < s.stay && !r.cfg.plant.Has(plant.MoveTwice) {
			continue
		}
		best := r.first(i, settled, "")
		if best == "" || best == r.node.Candidate.ID {
			continue
		}
		select {
		case r.moves <- struct{}{}:
			s.to, s.moved, s.slot = best, now, true
			s.cancel(errMove)
			if r.cfg.plant.Has(plant.MoveBeforeDrain) {
				go func(term *tenure.Term) { _ = term.TransferTo(r.ctx, best) }(s.term)
			}
		default:
			return // MaxMoves are in progress
		}
	}
}

// settled returns this process's own session and those that it has seen for Settle. r.mu is held.
func (r *runner) settled(line []store.Session, now clock.Instant) []store.Session {
	long := line[:0:0]
	for _, s := range line {
		first, known := r.born[s.ID]
		if known && now.Sub(first) >= r.cfg.Settle || s.Candidate.ID == r.node.Candidate.ID || r.cfg.plant.Has(plant.SettleIgnored) {
			long = append(long, s)
		}
	}
	return long
}

// first returns the candidate that should own a shard, or "" if there is none. r.mu is held.
func (r *runner) first(i int, of []store.Session, but string) string {
	best, most := "", 0.0
	for _, s := range of {
		id := s.Candidate.ID
		if id == but || r.cordoned[id] || id != r.node.Candidate.ID && r.rules.Load().full[id] == s.ID || !s.Scope.Covers(Group(r.cfg.Set, i)) {
			continue
		}
		if number := r.rules.Load().rank(r.cfg.Set, i, id); best == "" || number > most {
			best, most = id, number
		}
	}
	return best
}

// stop gives up all shards, MaxMoves at a time. Work that does not return in time delays only its
// own shard.
func (r *runner) stop() {
	r.mu.Lock()
	r.stopping = true
	r.mu.Unlock()
	r.withdrawAll()
	patience := time.NewTimer(time.Second)
	defer patience.Stop()
	for i := range r.shards {
		r.mu.Lock()
		s := &r.shards[i]
		moves := s.term != nil && !s.slot
		r.mu.Unlock()
		if !moves {
			continue
		}
		slot := false
		select {
		case r.moves <- struct{}{}:
			slot = true
			patience.Reset(time.Second)
		case <-patience.C:
			patience.Reset(0)
		}
		r.mu.Lock()
		if slot && s.term == nil { // it has ended meanwhile
			<-r.moves
		} else if s.term != nil {
			s.slot = slot
			s.cancel(context.Cause(r.ctx))
		}
		r.mu.Unlock()
	}
	r.busy.Wait()
}

// Owner reads who owns the shard of a key: whom to send a call to. It is a hint. The owner may have
// changed when the call arrives, so it must be ready to refuse.
func Owner(ctx context.Context, node *lease.Node, set, key string, count int) (tenure.Leader, error) {
	e, err := node.Elector(Group(set, Of(key, count)))
	if err != nil {
		return tenure.Leader{}, err
	}
	return e.Leader(ctx)
}
