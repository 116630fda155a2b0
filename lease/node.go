package lease

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/elector"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// ErrClosed is returned after the node was closed.
var ErrClosed = machine.ErrClosed

// Node keeps one session of this process alive and campaigns with it for any number
// of groups. It is the shell of a machine.Machine: one goroutine steps the machine
// and never waits for the store, so a call that hangs cannot delay the end of a term.
type Node struct {
	cfg      Config
	store    store.Store
	instance string // random: every start of a process has another one
	machine  *machine.Machine
	roster   *machine.Roster
	timer    clock.Timer

	ctx      context.Context // of the calls and the watch
	cancel   context.CancelFunc
	work     sync.WaitGroup // calls, watch, health
	done     chan struct{}  // the loop has ended
	quit     chan struct{}  // the loop must end
	quitOnce sync.Once
	wake     chan struct{}
	notes    noteQueue

	calls, watches atomic.Int64 // running

	mu      sync.Mutex
	emptied sync.Cond // the loop has taken the queue
	queue   []machine.Event
	closing bool // no new campaigns
	ended   bool // the loop has ended
	stopErr error
	waiters map[string]*waiter
	settles map[settleKey][]chan error
	answers map[string]answer // the last answer of Leader, by group

	// Only the loop uses these.
	terms     map[string]*heldTerm
	trust     *elector.Trust
	session   store.Session
	stopWatch context.CancelFunc
	stream    uint64 // counts the watches
}

type answer struct {
	leader tenure.Leader
	asked  clock.Instant
}

// waiter waits for the outcome of a campaign. tell must not block.
type waiter struct{ tell func(outcome) }

type outcome struct {
	term *tenure.Term
	err  error
}

type settleKey struct {
	group string
	token fence.Token
}

type heldTerm struct {
	token fence.Token
	end   func(error) bool
}

const (
	// maxQueue is the length of the queue at which a watch must wait. Other sources
	// of events are few.
	maxQueue = 4096
	// maxCalls bounds the goroutines of calls to a store that ignores deadlines.
	maxCalls = 128
	// maxWatches bounds the goroutines of watches that do not end.
	maxWatches = 8
)

// New returns a node without calling the store: the first campaign opens the
// session. The caller must call Close.
func New(st store.Store, cfg Config) (*Node, error) {
	if st == nil || reflect.ValueOf(st).Kind() == reflect.Pointer && reflect.ValueOf(st).IsNil() {
		return nil, &store.ArgumentError{Field: "store", Rule: "must not be nil"}
	}
	cfg.Timing = cfg.Timing.Resolve()
	if err := cmp.Or(cfg.Validate(), cfg.fits(st.Caps())); err != nil {
		return nil, err
	}
	if !cfg.Unguarded {
		st = guard.Guard(st, guard.Config{Plant: cfg.planted})
	}
	cfg.Clock, cfg.Log = cmp.Or(cfg.Clock, clock.System()), cmp.Or(cfg.Log, slog.Default())
	var sick error
	if cfg.Health != nil {
		sick = errors.New("lease: the health check has not answered yet")
	}
	roster := &machine.Roster{}
	n := &Node{
		roster:   roster,
		cfg:      cfg,
		store:    st,
		instance: rand.Text(),
		machine: machine.New(machine.Config{
			Timing: machine.Timing(cfg.Timing), Candidate: cfg.Candidate, Scope: cfg.Scope, Caps: st.Caps(), Line: roster, Sick: sick, Seed: mathrand.Uint64(), Plant: cfg.planted,
		}),
		timer:   cfg.Clock.NewTimer(),
		done:    make(chan struct{}),
		quit:    make(chan struct{}),
		wake:    make(chan struct{}, 1),
		waiters: map[string]*waiter{},
		settles: map[settleKey][]chan error{},
		answers: map[string]answer{},
		terms:   map[string]*heldTerm{},
	}
	n.notes.c = make(chan Note, maxNotes)
	n.emptied.L = &n.mu
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.work.Go(func() { n.notes.write(&n.cfg) })
	if cfg.Health != nil {
		n.work.Go(n.watchHealth)
	}
	go n.loop()
	return n, nil
}

// Elector returns the elector of a group in the node's scope.
func (n *Node) Elector(group string) (*Elector, error) {
	if err := store.CheckGroup(group); err != nil {
		return nil, err
	}
	if !n.cfg.Scope.Covers(group) {
		return nil, &store.ArgumentError{Field: "group", Value: group, Rule: fmt.Sprintf("is not in the scope of this node: %s", strings.Join(n.cfg.Scope, ", "))}
	}
	return &Elector{node: n, group: group}, nil
}

// Close ends every term, waits for work to return, closes the session, which
// frees all its groups at once, and waits for the node's goroutines. If ctx ends
// first, the session is not closed and expires, so that its groups are not granted
// to others while work may still run. The error then names the groups whose work
// has not returned. With Config.Exit set, closing continues in the background until
// work has returned or the process is ended.
func (n *Node) Close(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	n.mu.Lock()
	n.closing = true
	n.mu.Unlock()
	n.push(machine.Event{Kind: machine.OnShutdown})
	select {
	case <-n.done:
	case <-ctx.Done():
		if n.cfg.Exit != nil {
			return fmt.Errorf("lease: closing goes on, and the process is ended if its work does not return: %w", context.Cause(ctx))
		}
		n.quitOnce.Do(func() { close(n.quit) })
		<-n.done
	}
	ended := make(chan struct{})
	go func() { n.work.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(n.cfg.CallTimeout):
		return errors.Join(n.stopErr, fmt.Errorf("lease: a call to the store, the health check or the log hangs and is left behind after %v", n.cfg.CallTimeout))
	}
	return n.stopErr
}

// push queues an event for the machine. It never blocks.
func (n *Node) push(e machine.Event) {
	n.mu.Lock()
	n.queue = append(n.queue, e)
	n.mu.Unlock()
	n.wakeLoop()
}

func (n *Node) wakeLoop() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// pushView queues a view. It blocks while the queue is long, because a watch may
// deliver ten thousand groups.
func (n *Node) pushView(v store.View, stream uint64) {
	n.mu.Lock()
	for len(n.queue) >= maxQueue && n.ctx.Err() == nil {
		n.emptied.Wait()
	}
	n.mu.Unlock()
	n.push(machine.Event{Kind: machine.OnView, View: &v, Stream: stream})
}

// ofThisWatch drops the events of earlier watches.
func (n *Node) ofThisWatch(events []machine.Event) []machine.Event {
	return slices.DeleteFunc(events, func(e machine.Event) bool {
		return (e.Kind == machine.OnView || e.Kind == machine.OnWatchLost) && e.Stream != n.stream
	})
}

func (n *Node) loop() {
	defer n.stopped()
	var events []machine.Event
	for {
		n.mu.Lock()
		clear(events)
		events, n.queue = n.queue, events[:0]
		n.emptied.Broadcast()
		n.mu.Unlock()
		for _, a := range n.machine.Step(n.cfg.Clock.Now(), n.ofThisWatch(events)...) {
			if a.Kind == machine.DoStopped {
				n.stopErr = a.Cause
				return
			}
			n.act(a)
		}
		n.timer.Set(n.machine.Next())
		select {
		case <-n.wake:
		case <-n.timer.C():
		case <-n.quit:
			n.stopErr = fmt.Errorf("lease: closed before everything had stopped%s: the session is left to expire within %v", n.unfinished(), n.cfg.TTL)
			return
		}
	}
}

// unfinished names the groups whose work has not returned.
func (n *Node) unfinished() string {
	groups := n.machine.Holds()
	if len(groups) == 0 {
		return ""
	}
	const most = 10
	if len(groups) > most {
		groups = append(groups[:most], fmt.Sprintf("and %d more", len(groups)-most))
	}
	return ", work has not returned for " + strings.Join(groups, ", ")
}

// stopped answers everybody who still waits, after the loop.
func (n *Node) stopped() {
	n.timer.Stop()
	n.cancel()
	n.mu.Lock()
	n.closing, n.ended = true, true
	waiters := n.waiters
	n.waiters = map[string]*waiter{}
	for key, cs := range n.settles {
		for _, c := range cs {
			c <- ErrClosed
		}
		delete(n.settles, key)
	}
	n.emptied.Broadcast()
	n.mu.Unlock()
	for _, w := range waiters {
		w.tell(outcome{err: ErrClosed})
	}
	for _, t := range n.terms {
		t.end(tenure.ErrResigned)
	}
	close(n.notes.c)
	close(n.done)
	if n.stopErr == nil && n.cfg.Keeper != nil {
		n.cfg.Keeper.Forget(n.instance) // the session was closed
	}
}

func (n *Node) act(a machine.Action) {
	switch a.Kind {
	case machine.DoCall:
		n.call(a.Call)
	case machine.DoWatch:
		n.watch()
	case machine.DoTrust:
		if n.trust == nil || n.session.ID != a.Session.ID {
			// Each session has its own Trust: a later session must not extend old terms.
			n.session, n.trust = a.Session, elector.NewTrust(n.cfg.Clock)
		}
		n.trust.Set(a.Until)
		n.trust.SetAtRisk(false)
	case machine.DoRisk:
		n.trust.SetAtRisk(true)
	case machine.DoBegin:
		n.begin(a)
	case machine.DoEnd:
		if t := n.terms[a.Group]; t != nil && t.token == a.Token {
			t.end(a.Cause)
			delete(n.terms, a.Group)
		}
	case machine.DoFail:
		n.deliver(a.Group, outcome{err: a.Cause})
	case machine.DoSettle:
		n.settle(settleKey{a.Group, a.Token}, a.Cause)
	case machine.DoOverrun:
		if n.cfg.Exit != nil {
			n.logExit(a)
			n.cfg.Exit(OverrunExitCode)
		}
	case machine.DoNote:
		n.notes.add(Note(a.Note))
	}
}

// logExit logs why the process ends. It does not wait for a log that hangs.
func (n *Node) logExit(a machine.Action) {
	logged := make(chan struct{})
	n.work.Go(func() {
		defer close(logged)
		n.cfg.Log.Error("tenure: work has not returned in time: exiting", "group", a.Group, "token", a.Token, "cause", a.Cause)
	})
	select {
	case <-logged:
	case <-time.After(machine.ExitMargin / 2):
	}
}

func (n *Node) begin(a machine.Action) {
	g := &grant{node: n, group: a.Group, token: a.Token, holds: n.session.ID}
	// The digest includes the instance, because an engine that lost data may reuse a session id.
	session := fence.SessionDigest(n.instance + "/" + string(n.session.ID))
	if n.cfg.planted.Has(plant.EqualTokenSeal) {
		session = ""
	}
	term, end := elector.NewTerm(elector.TermConfig{
		Group: a.Group, Token: a.Token, Deployment: n.session.Deployment, Session: session, Candidate: n.cfg.Candidate, Trust: n.trust, Grant: g,
	})
	n.terms[a.Group] = &heldTerm{token: a.Token, end: end}
	if !n.deliver(a.Group, outcome{term: term}) {
		// The campaign was withdrawn just now.
		delete(n.terms, a.Group)
		end(tenure.ErrResigned)
		n.push(machine.Event{Kind: machine.OnReturned, Group: a.Group, Token: a.Token})
	}
}

func (n *Node) deliver(group string, o outcome) bool {
	n.mu.Lock()
	w := n.waiters[group]
	delete(n.waiters, group)
	n.mu.Unlock()
	if w == nil {
		return false
	}
	w.tell(o)
	return true
}

func (n *Node) settle(key settleKey, err error) {
	if t := n.terms[key.group]; t != nil && t.token == key.token {
		delete(n.terms, key.group)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.settles[key] {
		c <- err
	}
	delete(n.settles, key)
}

// call calls the store in a new goroutine.
func (n *Node) call(c *machine.Call) {
	if n.calls.Load() >= maxCalls { // only the loop increments it
		n.push(machine.Event{Kind: machine.OnReply, Reply: &machine.Reply{ID: c.ID, Err: fmt.Errorf("lease: %d calls to the store are hanging: %w", maxCalls, store.ErrBusy)}})
		return
	}
	n.calls.Add(1)
	n.work.Go(func() {
		ctx, cancel := context.WithTimeout(n.ctx, c.Timeout)
		r := c.Do(ctx, n.store, n.cfg.Candidate, store.OpenOptions{Scope: n.cfg.Scope, Instance: n.instance, Fenced: n.cfg.Fenced, Successor: n.cfg.Scope.Single()})
		cancel()
		if c.Kind == machine.CallOpen && r.Err == nil && n.cfg.Keeper != nil {
			n.cfg.Keeper.Keep(r.Session, n.instance)
		}
		n.calls.Add(-1)
		n.push(machine.Event{Kind: machine.OnReply, Reply: r})
	})
}

func (n *Node) watch() {
	if n.stopWatch != nil {
		n.stopWatch()
	}
	n.stream++
	stream := n.stream
	if n.watches.Load() >= maxWatches {
		n.push(machine.Event{Kind: machine.OnWatchLost, Stream: stream, Cause: fmt.Errorf("lease: %d watches do not end when they are told to: %w", maxWatches, store.ErrBusy)})
		return
	}
	ctx, cancel := context.WithCancel(n.ctx)
	n.stopWatch = cancel
	n.watches.Add(1)
	feed := n.roster.Feed()
	n.work.Go(func() {
		defer cancel()
		defer n.watches.Add(-1)
		err := errors.New("lease: the watch ended")
		for u, e := range n.store.Watch(ctx, n.cfg.Scope) {
			if e != nil {
				err = e
				break
			}
			feed(u)
			if u.Kind == store.GroupChanged || u.Kind == store.Synced {
				n.pushView(u.View, stream)
			}
		}
		if ctx.Err() == nil {
			n.push(machine.Event{Kind: machine.OnWatchLost, Cause: err, Stream: stream})
		}
	})
}

// watchHealth runs the health check once a Beat. A check that hangs counts as failed,
// and is not run again before it has returned.
func (n *Node) watchHealth() {
	answer := make(chan error, 1)
	busy := false
	for {
		if !busy {
			busy = true
			n.work.Go(func() {
				ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Beat)
				defer cancel()
				answer <- n.cfg.Health(ctx)
			})
		}
		select {
		case err := <-answer:
			busy = false
			n.push(machine.Event{Kind: machine.OnHealth, Cause: err})
			select {
			case <-time.After(n.cfg.Beat):
			case <-n.ctx.Done():
				return
			}
		case <-time.After(n.cfg.Beat):
			n.push(machine.Event{Kind: machine.OnHealth, Cause: fmt.Errorf("lease: the health check has not answered in %v", n.cfg.Beat)})
		case <-n.ctx.Done():
			return
		}
	}
}
