package sim

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// task is code of store/kv that runs in a process: a call of the machine, or background work of
// the store. It is a coroutine: at each operation of its driver it yields to the world, which
// resumes it when the answer arrives.
type task struct {
	*worker
	n       *node
	call    *machine.Call // nil: it is not a call of the machine
	done    func()        // called after the code has returned
	over    bool
	op      *op  // in flight
	mute    bool // its writes get no answer
	watches bool // it begins a watch
	// In an instance of the service: the client that it works for, and the client's instance id.
	by       *node
	instance string

	// What the engine did for it.
	won     map[string]fence.Token
	renewed bool // it renewed a living session
	arrived bool // its keep-alive has arrived, once or twice
	rewound bool // its keep-alive arrived when the deployment was marked as rewound
}

// owner returns the process that the task works for, and its instance id.
func (t *task) owner() (n *node, start string) {
	if t.by != nil {
		return t.by, t.instance
	}
	return t.n, t.n.instance()
}

// worker is a coroutine. It is used for one task after the other, because a new one is expensive.
type worker struct {
	next func() (*op, bool)
	stop func()
	job  func()
	// yield passes an operation to the world, or nil when the job is done. It returns false
	// if the process has crashed.
	yield func(*op) bool
}

func newWorker() *worker {
	c := &worker{}
	c.next, c.stop = iter.Pull(func(yield func(*op) bool) {
		c.yield = yield
		for {
			c.job()
			if !yield(nil) {
				return
			}
		}
	})
	return c
}

// op is an operation of the driver in flight.
type op struct {
	ctx    context.Context
	write  bool
	do     func() func() // runs at the engine; returns the function that delivers the answer
	fail   func(error)
	stream *stream // if not nil, the task waits for its next change
	sent   instant
}

var (
	errCrashed = errors.New("the process has crashed")
	errNoReply = errors.New("the engine does not answer")
)

// run starts a task. done runs after the task, never inside run.
func (n *node) run(t *task, f, done func()) {
	t.n = n
	n.tasks = append(n.tasks, t)
	if last := len(n.w.idle) - 1; last >= 0 {
		t.worker, n.w.idle = n.w.idle[last], n.w.idle[:last]
	} else {
		t.worker = newWorker()
	}
	t.job = f
	starts := n.starts
	finish := func() {
		if n.up && n.starts == starts {
			done()
		}
	}
	t.done = func() { n.w.after(0, finish) } // not now: the caller may be in a step of the machine
	t.resume(nil)
	t.done = finish
}

// resume runs the task until its next operation.
func (t *task) resume(put func()) {
	n, w := t.n, t.n.w
	t.op = nil
	if put != nil {
		put()
	}
	for {
		was := w.running
		w.running = t
		o, _ := t.next()
		w.running = was
		if o == nil {
			t.over = true
			w.idle = append(w.idle, t.worker)
			n.tasks = slices.DeleteFunc(n.tasks, func(o *task) bool { return o == t })
			t.done()
			return
		}
		t.op = o
		if o.stream == nil {
			t.send(o)
			return
		}
		if !o.stream.take() {
			o.stream.waits = t
			return
		}
	}
}

// answer resumes the task, after the pause if its process is paused, unless the operation has
// ended.
func (t *task) answer(o *op, put func()) {
	if t.op != o || t.over {
		return
	}
	if t.n.paused {
		t.n.answers = append(t.n.answers, func() { t.answer(o, put) })
		return
	}
	t.resume(put)
}

func (t *task) send(o *op) {
	n, s := t.n, t.n.w.store
	o.sent = n.w.now
	fail := func(err error) { t.answer(o, func() { o.fail(err) }) }
	served := false
	arrive := func() {
		s.receive(o.write, func() {
			if served && o.write {
				return // an engine applies a write once
			}
			served = true
			if s.down {
				if n.w.chance(0.5) {
					n.link.back(func() { fail(errReset) })
				}
				return
			}
			put := o.do()
			if !t.mute || !o.write {
				n.link.back(func() { t.answer(o, put) })
			}
		})
	}
	if s.caps.Keys == 1 && o.write && t.call != nil && t.call.Kind == machine.CallOpen && n.w.faulty && n.w.chance(0.05) {
		// Delay a step of an Open. Meanwhile a retry opens the session, and may close it.
		n.w.count(lateOpening)
		n.w.after(n.w.between(n.w.timing.CallTimeout, 3*n.w.timing.CallTimeout), arrive)
		return
	}
	underWay := n.link.there(arrive, fail)
	if !underWay && o.write && t.call != nil && t.call.Kind == machine.CallBeat {
		s.late[t.call.Session] = o // delayed, not lost
	}
}

// overdue ends operations without an answer in time, or whose context has ended. The limit for
// calls of the machine is longer than the machine's own, so that it gets late answers too.
func (n *node) overdue() {
	for _, t := range slices.Clone(n.tasks) {
		o, limit := t.op, n.w.timing.CallTimeout
		if t.call != nil {
			limit *= 3
		}
		switch {
		case o == nil:
		case o.ctx.Err() != nil:
			t.answer(o, func() { o.fail(context.Cause(o.ctx)) })
		case o.stream == nil && n.w.now > o.sent.add(limit):
			t.answer(o, func() { o.fail(errNoReply) })
		}
	}
}

// kill ends the tasks of a process that crashes. Messages that they have sent still arrive.
func (n *node) kill() {
	tasks := n.tasks
	n.tasks, n.answers = nil, nil
	for _, t := range tasks {
		t.end()
	}
}

// end stops a task at its current operation.
func (t *task) end() {
	n := t.n
	t.over = true
	n.tasks = slices.DeleteFunc(n.tasks, func(o *task) bool { return o == t })
	was := n.w.running
	n.w.running = t
	t.stop()
	n.w.running = was
}

// driver connects a store with the engine: over the network for a process, and directly for an
// operator (n is nil).
type driver struct {
	s *simStore
	n *node
}

var (
	_ kv.Driver = driver{}
	_ kv.Leaser = driver{}
)

// ask sends an operation to the engine and waits for the answer.
func ask[T any](ctx context.Context, d driver, write bool, f func(t *task) (T, error)) (got T, err error) {
	if d.n == nil {
		if d.s.down {
			return got, errReset
		}
		return f(nil)
	}
	t := d.s.w.running
	o := &op{ctx: ctx, write: write, fail: func(e error) { err = e }}
	o.do = func() func() {
		v, e := f(t)
		return func() { got, err = v, e }
	}
	if t.over || !t.yield(o) {
		return got, errCrashed
	}
	return got, err
}

func (d driver) Caps() kv.Caps { return d.s.caps }

func (d driver) Commit(ctx context.Context, x kv.Txn) (kv.Result, error) {
	for _, w := range x.Then {
		if id, ok := strings.CutPrefix(w.Key, "beat/"); ok && d.n != nil && (w.Value == nil || !lives(kv.Item{Version: 1, Value: w.Value})) {
			d.s.lastMoment(store.SessionID(id))
		}
	}
	r, err := ask(ctx, d, len(x.Then) > 0, func(t *task) (kv.Result, error) { return d.s.commit(t, x), nil })
	d.n.noteIndex(r)
	return r, err
}

func (d driver) List(ctx context.Context, prefix, after string, limit int) ([]kv.Item, error) {
	return ask(ctx, d, false, func(*task) ([]kv.Item, error) { return d.s.list(prefix, after, limit), nil })
}

func (d driver) Incarnation(ctx context.Context) (kv.Incarnation, error) {
	i, err := ask(ctx, d, false, func(*task) (kv.Incarnation, error) { return d.s.incarnation(), nil })
	if err == nil && d.n != nil {
		d.n.incarnation = i.ID
	}
	return i, err
}

func (d driver) Grant(ctx context.Context, want string, ttl time.Duration) (string, time.Duration, error) {
	granted, err := ask(ctx, d, true, func(*task) (time.Duration, error) { return d.s.grant(want, ttl), nil })
	return want, granted, err
}

// noteIndex notes the index and incarnation that the store of a process has seen.
func (n *node) noteIndex(r kv.Result) {
	if n != nil && r.Incarnation != "" {
		n.high, n.incarnation = max(n.high, r.Index), r.Incarnation
	}
}

type renewal struct {
	ttl time.Duration
	kv.Result
}

func (d driver) Renew(ctx context.Context, id string, read []string) (time.Duration, kv.Result, error) {
	r, err := ask(ctx, d, false, func(t *task) (renewal, error) { return d.s.renew(t, id, read) })
	d.n.noteIndex(r.Result)
	return r.ttl, r.Result, err
}

// Revoke ignores its context, which ends in real time.
func (d driver) Revoke(_ context.Context, id string) error {
	_, err := ask(background, d, true, func(*task) (struct{}, error) {
		d.s.revoke(d.n, id)
		return struct{}{}, nil
	})
	return err
}

func (d driver) Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[kv.Change, error] {
	return func(yield func(kv.Change, error) bool) {
		if d.n == nil {
			yield(kv.Change{}, errReset) // an operator does not watch
			return
		}
		t := d.s.w.running
		st := newStream(d.n, tick, prefixes)
		defer st.close()
		o := &op{ctx: ctx, stream: st, fail: func(err error) { st.err = err }}
		for {
			if t.over || !t.yield(o) {
				yield(kv.Change{}, errCrashed)
				return
			}
			if !yield(st.got, st.err) || st.err != nil {
				return
			}
		}
	}
}

// stream is one watch of a driver.
type stream struct {
	n        *node
	starts   int
	prefixes []string
	arrived  []kv.Change
	waits    *task // the task that waits for the next change
	got      kv.Change
	err      error
	tick     time.Duration
	ticks    bool

	open    bool
	silent  bool // broken, but neither side has noticed
	held    bool // the link is cut, and messages wait in backlog
	last    instant
	backlog []kv.Change
}

// newStream starts a watch. The engine refuses it or starts to send.
func newStream(n *node, tick time.Duration, prefixes []string) *stream {
	w := n.w
	st := &stream{n: n, starts: n.starts, prefixes: prefixes, tick: tick}
	arrived := false
	n.link.there(func() {
		if arrived || st.ended() {
			return
		}
		arrived = true
		if w.store.refusesWatch() {
			w.after(w.between(0, 2*time.Second), func() { st.fail(errReset) })
			return
		}
		st.open = true
		w.store.streams = append(w.store.streams, st)
		st.send(kv.Change{})
	}, func(error) {})
	w.after(3*time.Second, func() {
		if !arrived {
			w.after(w.between(0, 2*time.Second), func() { st.fail(errReset) })
		}
	})
	st.wait()
	return st
}

// wait sets the timer for the next tick.
func (st *stream) wait() {
	st.n.w.after(st.tick, func() {
		if !st.ended() {
			st.ticks = true
			st.rouse()
			st.wait()
		}
	})
}

func (st *stream) ended() bool { return st.err != nil || st.starts != st.n.starts || !st.n.up }

// take puts the next change into st.got. It reports whether there is one.
func (st *stream) take() bool {
	switch {
	case st.err != nil:
	case len(st.arrived) > 0:
		st.got, st.arrived = st.arrived[0], st.arrived[1:]
	case st.ticks:
		st.got, st.ticks = kv.Change{Tick: true}, false
	default:
		return false
	}
	return true
}

// rouse resumes the task that waits, if there is a change for it.
func (st *stream) rouse() {
	t := st.waits
	if t == nil || t.over {
		return
	}
	if t.n.paused {
		t.n.answers = append(t.n.answers, st.rouse)
		return
	}
	if st.take() {
		st.waits = nil
		t.resume(nil)
	}
}

func (st *stream) fail(err error) {
	if !st.ended() {
		st.err = err
		st.rouse()
	}
}

func (st *stream) close() {
	st.open, st.silent, st.waits = false, false, nil
	if st.err == nil {
		st.err = errReset
	}
	s := st.n.w.store
	s.streams = slices.DeleteFunc(s.streams, func(o *stream) bool { return o == st })
}

// send delivers a change: in order with its value, or as a hint in any order. Some changes are
// lost, and the stream reports a gap instead.
func (st *stream) send(c kv.Change) {
	n, w := st.n, st.n.w
	if !st.open || st.silent || c.Key != "" && !slices.ContainsFunc(st.prefixes, func(p string) bool { return strings.HasPrefix(c.Key, p) }) {
		return
	}
	if n.link.cutIn {
		st.held = true
		st.backlog = append(st.backlog, c)
		return
	}
	if w.gaps && w.chance(0.02) {
		c = kv.Change{}
	}
	at := w.now.add(n.link.delay(n.link.slowIn) + w.store.lag)
	if w.store.caps.Ordered || c.Key == "" {
		at = max(at, st.last)
		st.last = at
	}
	if !w.store.caps.Ordered {
		c.Item = nil
	}
	w.at(at, func() {
		if st.open && !st.silent && !st.ended() {
			st.arrived = append(st.arrived, c)
			st.rouse()
		}
	})
}

// lose ends a watch. Its process notices after a while.
func (st *stream) lose(within time.Duration) {
	if st.open {
		st.open = false
		w := st.n.w
		w.after(w.between(0, within), func() { st.fail(errReset) })
	}
}

func (st *stream) heal() {
	if st.held {
		st.held = false
		for _, c := range st.backlog {
			st.send(c)
		}
		st.backlog = nil
	}
	if st.silent {
		st.silent = false
		st.lose(time.Second)
	}
}

// reading is the clock of a process or of the engine, as a clock.Clock.
type reading func() clock.Instant

func (r reading) Now() clock.Instant  { return r() }
func (reading) NewTimer() clock.Timer { panic("sim: nothing waits in a simulated store") }
