package strategies

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
)

// arena is the servers of a strategy, real ones.
type arena struct {
	strategy
	addrs []string
	// kill kills a server; restart brings it back.
	kill func(i int) (restart func())
	// command starts a candidate, which runs RunCandidate.
	command []string
	groups  atomic.Int64
	// step is the work between a check and a write.
	step time.Duration
}

func newArena(t testing.TB, s strategy, command []string) *arena {
	t.Helper()
	a := &arena{strategy: s, command: command, step: 10 * time.Millisecond}
	switch s.engine {
	case "postgres":
		server := servertest.Postgres(t, servertest.Args("-c", "fsync=off"))
		if err := prepare(context.Background(), server.URL()); err != nil {
			t.Fatalf("prepare PostgreSQL: %v", err)
		}
		a.addrs = []string{server.Addr()}
	case "redis":
		var servers []*servertest.Server
		for range s.servers {
			server := servertest.Redis(t)
			servers, a.addrs = append(servers, server), append(a.addrs, server.Addr())
		}
		a.kill = func(i int) func() {
			servers[i].Kill()
			return servers[i].Start
		}
	case "zookeeper":
		servers := servertest.ZooKeeper(t, s.servers)
		for _, server := range servers {
			a.addrs = append(a.addrs, server.Addr())
		}
		a.kill = func(i int) func() {
			servers[i].Kill()
			return servers[i].Start
		}
	case "etcd":
		cluster := enginetest.Cluster(t, s.servers, enginetest.FastTicks())
		for _, m := range cluster.Members {
			a.addrs = append(a.addrs, m.Addr())
		}
		a.kill = func(i int) func() {
			cluster.Members[i].Kill()
			return cluster.Start
		}
	}
	return a
}

// term is one leadership, as its process reports it.
type term struct {
	node   int
	token  uint64
	began  clock.Instant
	ended  clock.Instant // 0: it believes
	writes int
	// sealed: the resource knows of it.
	sealed bool
}

// proc is a candidate's process.
type proc struct {
	id  int
	cfg Config

	run    *child.Process
	in     *json.Encoder
	closer io.Closer
	// The fleet's lock guards what follows.
	term    *term
	ready   bool
	gone    bool // its output has ended
	counts  message
	asked   int // counts
	told    int
	stopped []span // while it was stopped by a signal
	said    []string
}

type span struct{ from, to clock.Instant }

// fleet is the candidates of one group, the links between them and what they call, and the
// resource that they write to.
type fleet struct {
	a     *arena
	fence bool
	links [][]*enginetest.Proxy
	procs []*proc
	stop  func()

	mu      sync.Mutex
	changed chan struct{} // closed and replaced with every message
	terms   []*term
	mark    fence.Mark
	// Writes of a leader after a newer one has begun.
	accepted, refused int
	// campaigned is when the candidates were told to campaign.
	campaigned clock.Instant
}

// options change a fleet.
type options struct {
	nodes  int
	ttl    time.Duration
	fence  bool
	change func(*Config)
	// delay between a candidate and what it calls, one way.
	delay func(from, to int) time.Duration
}

// start starts a fleet in a group of its own. Another process may take a port between its choice
// and its use; then other ports are chosen.
func (a *arena) start(ctx context.Context, o options) (f *fleet, err error) {
	const tries = 5
	for range tries {
		if f, err = a.startOnce(ctx, o); err == nil || !strings.Contains(err.Error(), "address already in use") {
			break
		}
	}
	return f, err
}

func (a *arena) startOnce(ctx context.Context, o options) (f *fleet, err error) {
	group := fmt.Sprintf("g%d", a.groups.Add(1))
	f = &fleet{a: a, fence: o.fence, changed: make(chan struct{})}
	var ports []string
	targets := a.addrs
	if a.engine == peers {
		if ports, err = child.FreePorts(o.nodes); err != nil {
			return nil, err
		}
		targets = ports
	}
	var dir string
	closeLinks, err := servertest.Run(func(t testing.TB) {
		dir = t.TempDir()
		for i := range o.nodes {
			var row []*enginetest.Proxy
			for k, target := range targets {
				p := enginetest.NewProxy(t, target)
				if o.delay != nil {
					p.Delay(enginetest.Up, o.delay(i, k))
					p.Delay(enginetest.Down, o.delay(i, k))
				}
				row = append(row, p)
			}
			f.links = append(f.links, row)
		}
	})
	if err != nil {
		return nil, err
	}
	f.stop = func() {
		for _, p := range f.procs {
			p.end()
		}
		closeLinks()
	}
	for i := range o.nodes {
		c := Config{
			Strategy: a.name, ID: i, Nodes: o.nodes, Group: group, TTL: o.ttl, Peers: ports,
			Dir: filepath.Join(dir, fmt.Sprint(i)), Step: a.step,
		}
		if ports != nil {
			c.Listen = ports[i]
		}
		for _, l := range f.links[i] {
			c.Links = append(c.Links, l.Addr())
		}
		if o.change != nil {
			o.change(&c)
		}
		f.procs = append(f.procs, &proc{id: i, cfg: c})
	}
	for _, p := range f.procs {
		err = errors.Join(err, f.launch(p))
	}
	failed := false
	if err == nil && (!f.await(ctx, time.Minute, func() bool {
		failed = slices.ContainsFunc(f.procs, func(p *proc) bool { return p.gone })
		return failed || !slices.ContainsFunc(f.procs, func(p *proc) bool { return !p.ready })
	}) || failed) {
		err = fmt.Errorf("the candidates of %s were not ready in time: %v", a.name, f.log())
	}
	if err != nil {
		f.stop()
		return nil, err
	}
	f.campaigned = now()
	for i, p := range f.procs {
		f.send(p, message{Op: opGo})
		// A flag may be set by two at once: one has a start.
		if i == 0 && a.name == flagName && o.change == nil && f.leader(ctx, time.Minute) == nil {
			f.stop()
			return nil, fmt.Errorf("the first candidate does not lead: %v", f.log())
		}
	}
	return f, nil
}

// launch starts a process.
func (f *fleet) launch(p *proc) error {
	cmd := exec.Command(f.a.command[0], f.a.command[1:]...)
	tail := &child.Tail{}
	cmd.Stderr, cmd.WaitDelay = tail, time.Second
	child.DieWithParent(cmd)
	in, ierr := cmd.StdinPipe()
	out, oerr := cmd.StdoutPipe()
	if err := errors.Join(ierr, oerr); err != nil {
		return err
	}
	f.mu.Lock()
	p.in, p.closer, p.term, p.ready, p.gone = json.NewEncoder(in), in, nil, false, false
	f.mu.Unlock()
	run, err := child.Start(cmd, func() { f.hear(p, out, tail) })
	if err != nil {
		return err
	}
	p.run = run
	return p.in.Encode(p.cfg)
}

// end kills a process that runs.
func (p *proc) end() {
	if p.run == nil {
		return
	}
	p.run.Kill()
	_ = p.closer.Close()
	p.run = nil
}

func (f *fleet) send(p *proc, x message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = p.in.Encode(x) // a process that has ended takes nothing
}

// hear handles the messages of a process until it ends.
func (f *fleet) hear(p *proc, out io.Reader, tail *child.Tail) {
	messages := json.NewDecoder(out)
	for {
		var x message
		err := messages.Decode(&x)
		f.mu.Lock()
		if err != nil {
			p.gone = true
			if text := tail.String(); text != "" {
				p.said = append(p.said, text)
			}
		} else if ok, answer := f.take(p, x); answer {
			_ = p.in.Encode(message{Op: opAnswer, OK: ok})
		}
		close(f.changed)
		f.changed = make(chan struct{})
		f.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// take handles a message. The caller holds the lock.
func (f *fleet) take(p *proc, x message) (ok, answer bool) {
	switch x.Op {
	case opReady:
		p.ready = true
	case opCounts:
		p.counts = x
		p.told++
	case opLog:
		p.said = append(p.said, x.Text)
	case opDoubts:
		if p.term != nil {
			p.term.ended = x.At
		}
	case opBegin:
		p.term = &term{node: p.id, token: x.Token, began: x.At}
		f.terms = append(f.terms, p.term)
		p.term.sealed = f.admit(p)
		return p.term.sealed, true
	case opWrite:
		stale := f.stale(p.term)
		if !f.admit(p) {
			f.refused++
			return false, true
		}
		if stale {
			f.accepted++
		}
		p.term.writes++
		return true, true
	}
	return false, false
}

// admit is the fence: it compares tokens, where there are any.
func (f *fleet) admit(p *proc) bool {
	if !f.fence || p.term.token == 0 {
		return true
	}
	mark, err := f.mark.Admit(fence.Stamp{Deployment: "lab", Group: p.cfg.Group, Token: fence.Token(p.term.token)})
	f.mark = mark
	return err == nil
}

// stale reports whether a newer leader has begun: one with a later token or, without tokens, one
// that has begun later. The fence plays no part in it.
func (f *fleet) stale(t *term) bool {
	after := false
	for _, o := range f.terms {
		if o == t {
			after = true
			continue
		}
		if t.token > 0 && o.token > t.token || t.token == 0 && after {
			return true
		}
	}
	return false
}

// await waits until a condition holds. The condition is called with the lock.
func (f *fleet) await(ctx context.Context, patience time.Duration, holds func() bool) bool {
	late := time.After(patience)
	for {
		f.mu.Lock()
		ok, changed := holds(), f.changed
		f.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-late:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// leader waits for a leader that writes, and that nobody disputes.
func (f *fleet) leader(ctx context.Context, patience time.Duration) (p *proc) {
	f.await(ctx, patience, func() bool {
		p = nil
		n := 0
		for _, o := range f.procs {
			if o.term != nil && o.term.ended == 0 {
				n++
				if o.term.writes > 0 {
					p = o
				}
			}
		}
		if n != 1 {
			p = nil
		}
		return p != nil
	})
	return p
}

// count asks the processes that run how many messages they have sent.
func (f *fleet) count(ctx context.Context, of []*proc) (beats, others int64, err error) {
	for _, p := range of {
		f.mu.Lock()
		p.asked++
		f.mu.Unlock()
		f.send(p, message{Op: opCount})
	}
	if !f.await(ctx, time.Minute, func() bool {
		return !slices.ContainsFunc(of, func(p *proc) bool { return p.told < p.asked })
	}) {
		return 0, 0, fmt.Errorf("a candidate does not answer: %v", f.log())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range of {
		beats += p.counts.Beats
		others += p.counts.Others
	}
	return beats, others, nil
}

// except returns the running processes but one.
func (f *fleet) except(but *proc) (others []*proc) {
	for _, p := range f.procs {
		if p != but && p.run != nil {
			others = append(others, p)
		}
	}
	return others
}

// pause stops a process with SIGSTOP, and returns when it is stopped.
func (f *fleet) pause(ctx context.Context, p *proc) error {
	if err := child.Pause(p.run.Cmd.Process); err != nil {
		return err
	}
	for !child.Paused(p.run.Cmd.Process.Pid) {
		if !pause(ctx, time.Millisecond) {
			return ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p.stopped = append(p.stopped, span{from: now()})
	return nil
}

func (f *fleet) resume(p *proc) error {
	f.mu.Lock()
	p.stopped[len(p.stopped)-1].to = now()
	f.mu.Unlock()
	return child.Resume(p.run.Cmd.Process)
}

// kill kills a process. Its term ends then.
func (f *fleet) kill(p *proc) {
	at := now()
	p.end()
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.term != nil && p.term.ended == 0 {
		p.term.ended = at
	}
	p.ready = false
	p.asked, p.told = 0, 0
}

// restart starts a killed process again.
func (f *fleet) restart(ctx context.Context, p *proc) error {
	if err := f.launch(p); err != nil {
		return err
	}
	if !f.await(ctx, time.Minute, func() bool { return p.ready }) {
		return fmt.Errorf("candidate %d was not ready in time: %v", p.id, f.log())
	}
	f.send(p, message{Op: opGo})
	return nil
}

// cut holds back what goes from some candidates to some targets. Between peers the other
// direction of the same connections has answers only.
func (f *fleet) cut(from, to []int, ways ...enginetest.Direction) {
	for _, i := range from {
		for _, k := range to {
			for _, d := range ways {
				f.links[i][k].CutOneWay(d)
			}
		}
	}
}

// held is how many bytes the cut links hold back. Above 0 the cut has an effect.
func (f *fleet) held() (n int64) {
	for _, row := range f.links {
		for _, l := range row {
			n += l.Held(enginetest.Up) + l.Held(enginetest.Down)
		}
	}
	return n
}

func (f *fleet) heal() {
	for _, row := range f.links {
		for _, l := range row {
			l.Heal()
		}
	}
}

// log is what the processes said last.
func (f *fleet) log() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.procs {
		for _, s := range p.said[max(0, len(p.said)-2):] {
			all = append(all, fmt.Sprintf("candidate %d: %s", p.id, s))
		}
	}
	return all
}

// believers returns how many believed at once at most since a time, and for how long more than
// one did. A process does not believe while it is stopped.
func (f *fleet) believers(since clock.Instant) (most int, both time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	type edge struct {
		at clock.Instant
		by int
	}
	var edges []edge
	add := func(from, to clock.Instant) {
		if from = max(from, since); from < to {
			edges = append(edges, edge{from, 1}, edge{to, -1})
		}
	}
	for _, t := range f.terms {
		from, end := t.began, t.ended
		if end == 0 {
			end = now()
		}
		for _, s := range f.procs[t.node].stopped {
			if s.to == 0 {
				s.to = now()
			}
			if s.from < end && s.to > from {
				add(from, s.from)
				from = s.to
			}
		}
		add(from, end)
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return a.by - b.by
	})
	n, last := 0, clock.Instant(0)
	for _, e := range edges {
		if n > 1 {
			both += e.at.Sub(last)
		}
		n, last = n+e.by, e.at
		most = max(most, n)
	}
	return most, both
}
