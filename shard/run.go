package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/placement"
	"github.com/tenurehq/tenure/internal/plant"
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
		held: make([]held, cfg.Count), wake: make(chan struct{}, 1),
	}
	if err := r.agree(ctx); err != nil {
		return err
	}
	r.machine = placement.New(placement.Config{
		Set: cfg.Set, Count: cfg.Count, Max: cfg.Max, MaxMoves: cfg.MaxMoves, Settle: cfg.Settle,
		Self: n.Candidate.ID, Seed: rand.Uint64(), Sessions: n.Sessions, Rules: r.rules.Load(), Plant: cfg.plant,
	})
	n.Rank(cfg.Set, r.rank)
	defer n.Rank(cfg.Set, nil)
	r.busy.Go(r.readRules)
	r.step(placement.Event{Kind: placement.OnBegin})
	r.loop()
	r.busy.Wait()
	return context.Cause(ctx)
}

// runner is one process's part of a set. It does what the machine decides.
type runner struct {
	cfg  Config
	node shardhook.Node
	work func(context.Context, Shard) error
	log  *slog.Logger
	ctx  context.Context
	quit context.CancelCauseFunc // ends Run
	busy sync.WaitGroup
	wake chan struct{} // there are actions in todo

	rules atomic.Pointer[placement.Rules]

	mu      sync.Mutex
	machine *placement.Machine
	todo    []placement.Action
	held    []held          // by shard
	warned  clock.Instant   // when the last failed campaign was logged
	full    store.SessionID // what announce has written last; only readRules uses it
}

// held is the term of a shard, and what ends its work.
type held struct {
	term *tenure.Term
	ctx  context.Context
	end  context.CancelCauseFunc
}

// step tells the machine what happened. It does not block.
func (r *runner) step(e placement.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.todo = append(r.todo, r.machine.Step(r.node.Clock.Now(), e)...)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// loop does the machine's actions, one after the other, until everything is given up.
func (r *runner) loop() {
	tick := time.NewTicker(r.cfg.Settle / 4)
	defer tick.Stop()
	stop := r.ctx.Done()
	for {
		select {
		case <-r.wake:
		case <-tick.C:
			r.step(placement.Event{Kind: placement.OnTick})
		case <-stop:
			stop = nil
			r.step(placement.Event{Kind: placement.OnStop})
		}
		r.mu.Lock()
		todo, done := r.todo, r.machine.Done()
		r.todo = nil
		r.mu.Unlock()
		for _, a := range todo {
			r.act(a)
		}
		if done && len(todo) == 0 {
			return
		}
	}
}

func (r *runner) act(a placement.Action) {
	i, group := a.Shard, Group(r.cfg.Set, a.Shard)
	r.mu.Lock()
	h := r.held[i]
	r.mu.Unlock()
	switch a.Kind {
	case placement.DoStand:
		r.node.Stand(group, func(term *tenure.Term, err error) { r.stood(i, term, err) })
	case placement.DoWithdraw:
		r.node.Withdraw(group)
	case placement.DoWork:
		r.busy.Go(func() {
			err := r.work(h.ctx, Shard{Set: r.cfg.Set, Index: i, Term: h.term})
			early := h.ctx.Err() == nil
			if early {
				r.log.Warn("shard: work has returned before its term ended; another process gets the shard", "shard", i, "error", err)
			}
			r.step(placement.Event{Kind: placement.OnReturned, Shard: i, Early: early})
		})
	case placement.DoEnd:
		if a.To == "" {
			h.end(context.Cause(r.ctx))
		} else {
			h.end(errMove)
		}
	case placement.DoGive:
		r.busy.Go(func() {
			h.end(nil)
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), releaseTimeout)
			defer cancel()
			if a.To == "" || h.term.TransferTo(ctx, a.To) != nil {
				_ = h.term.Resign(ctx)
			}
			r.step(placement.Event{Kind: placement.OnGiven, Shard: i})
		})
	}
}

// stood handles the outcome of a campaign. It does not block.
func (r *runner) stood(i int, term *tenure.Term, err error) {
	if term != nil {
		ctx, end := context.WithCancelCause(term.Context())
		r.mu.Lock()
		r.held[i] = held{term, ctx, end}
		r.mu.Unlock()
		r.step(placement.Event{Kind: placement.OnWon, Shard: i})
		return
	}
	r.step(placement.Event{Kind: placement.OnFailed, Shard: i, Retry: err != nil})
	switch {
	case err == nil || r.ctx.Err() != nil:
	case errors.Is(err, lease.ErrClosed):
		r.quit(err)
	default:
		r.mu.Lock()
		now := r.node.Clock.Now()
		warn := r.warned == 0 || now.Sub(r.warned) > time.Minute // once, and not for each of thousands
		if warn {
			r.warned = now
		}
		r.mu.Unlock()
		if warn {
			r.log.Warn("shard: campaigns fail, and are tried again", "shard", i, "error", err)
		}
	}
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
	r.rules.Store(rules.of(nil))
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
	return r.rules.Load().Rank(r.cfg.Set, index, candidate), true
}

// readRules reads weights, pins and cordons once in a Settle, until Run ends.
func (r *runner) readRules() {
	tick := time.NewTicker(r.cfg.Settle)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			ctx, cancel := context.WithTimeout(r.ctx, r.cfg.Settle)
			r.readOnce(ctx)
			r.announce(ctx)
			cancel()
		case <-r.ctx.Done():
			return
		}
	}
}

// readOnce reads the rules. If it cannot, the old ones apply.
func (r *runner) readOnce(ctx context.Context) {
	rules, err := ReadRules(ctx, r.node.Store, r.cfg.Set)
	if err != nil {
		return
	}
	// Two processes that start at the same moment do not see each other in agree. With two
	// counts a key would have two owners, so only the process that wrote last continues.
	if rules.Count != 0 && rules.Count != r.cfg.Count {
		r.quit(&store.ArgumentError{Field: "Count", Value: r.cfg.Count, Rule: fmt.Sprintf("others run the set %q with %d shards", r.cfg.Set, rules.Count)})
		return
	}
	cordoned, err := cordons(ctx, r.node.Store)
	was := r.rules.Load()
	if err != nil {
		cordoned = was.Cordoned
	}
	now := rules.of(cordoned)
	if !maps.Equal(was.Weights, now.Weights) || !maps.Equal(was.Pins, now.Pins) {
		r.log.Info("shard: weights or pins have changed")
	}
	r.rules.Store(now)
	r.step(placement.Event{Kind: placement.OnRules, Rules: now})
}

// announce tells the others whether this process owns as many shards as it may, so that they do not
// move shards to it that it would give back.
func (r *runner) announce(ctx context.Context) {
	r.mu.Lock()
	is := r.machine.Full()
	r.mu.Unlock()
	full := store.SessionID("")
	if is {
		for _, s := range r.node.Sessions() {
			if s.Candidate.ID == r.node.Candidate.ID {
				full = s.ID
			}
		}
	}
	if full == r.full {
		return
	}
	if set1(ctx, r.node.Store, fullName(r.cfg.Set, r.node.Candidate.ID), sessionKey, string(full)) == nil {
		r.full = full
	}
}

// releaseTimeout limits the handover of a shard. After that the shard is free when the session ends.
const releaseTimeout = 10 * time.Second

// Owner reads who owns the shard of a key: whom to send a call to. It is a hint. The owner may have
// changed when the call arrives, so it must be ready to refuse.
func Owner(ctx context.Context, node *lease.Node, set, key string, count int) (tenure.Leader, error) {
	e, err := node.Elector(Group(set, Of(key, count)))
	if err != nil {
		return tenure.Leader{}, err
	}
	return e.Leader(ctx)
}
