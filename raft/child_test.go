//go:build linux

package raft

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/elector"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/pulse"
	"github.com/tenurehq/tenure/store"
)

// childEnv makes this test binary a node: its value is a childConfig. Or it keeps
// a core busy.
const (
	childEnv = "TENURE_RAFT_CHILD"
	burn     = "burn"
)

func TestMain(m *testing.M) {
	if raw := os.Getenv(childEnv); raw == burn {
		for i := 0; ; i++ {
			_ = i
		}
	} else if raw != "" {
		pulse.Main(func(context.Context) (store.Store, error) {
			cc, err := readChildConfig()
			if err != nil {
				return nil, err
			}
			return Notices(cc.config())
		})
		if err := childMain(); err != nil {
			fmt.Fprintln(os.Stderr, "node:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		_ = flag.Set("test.parallel", "4") // they wait more than they work
	}
	os.Exit(m.Run())
}

type childConfig struct {
	ID      string
	Group   string
	Peers   map[string]string
	DataDir string
	Timing  Timing
	Routes  map[string]string
	Pulse   bool
}

// config is that of the node, and of its keeper.
func (cc childConfig) config() Config {
	return Config{
		Candidate: tenure.Candidate{ID: cc.ID}, Group: cc.Group, Peers: cc.Peers, DataDir: cc.DataDir,
		Timing: cc.Timing, Dial: dialVia(cc.Routes), Log: testLog(),
	}
}

func readChildConfig() (cc childConfig, err error) {
	err = json.Unmarshal([]byte(os.Getenv(childEnv)), &cc)
	return cc, err
}

// command goes to a child on its standard input, event comes back on its
// standard output. A question and its answers share a number.
type command struct {
	N     int
	Do    string
	Token fence.Token
	To    string
	Cause string
	Seen  fence.Token
}

type event struct {
	N     int
	Error string

	Token      fence.Token
	Deployment string
	Until      clock.Instant // trust of the token

	Ended    string        // the cause
	Begun    clock.Instant // when it first believed,
	Believed clock.Instant // and when last

	Leader *tenure.Leader
}

var causes = map[string]error{
	"expired": tenure.ErrExpired, "lost": tenure.ErrLost, "resigned": tenure.ErrResigned,
	"transferred": tenure.ErrTransferred, "unhealthy": tenure.ErrUnhealthy,
}

func causeName(err error) string {
	for name, c := range causes {
		if errors.Is(err, c) {
			return name
		}
	}
	return "unknown"
}

// childMain is the node's side.
func childMain() error {
	cc, err := readChildConfig()
	if err != nil {
		return err
	}
	cfg := cc.config()
	var keeper *pulse.Client
	if cc.Pulse {
		if keeper, err = pulse.Start(cfg.Log); err != nil {
			return err
		}
		cfg.Keeper = keeper
	}
	n, err := Open(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := &childSide{node: n, keeper: keeper, out: json.NewEncoder(os.Stdout), stops: map[int]context.CancelFunc{}}
	c.send(event{}) // it runs
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var cmd command
		if err := in.Decode(&cmd); err != nil {
			return nil // the parent is gone
		}
		if cmd.Do == "cancel" {
			if stop := c.stops[int(cmd.Token)]; stop != nil {
				stop()
			}
			continue
		}
		// Here, so that a cancel that follows finds it.
		ctx, stop := context.WithCancel(ctx)
		c.stops[cmd.N] = stop
		go c.do(ctx, cmd)
	}
}

type childSide struct {
	node   *Node
	keeper *pulse.Client              // nil: none
	stops  map[int]context.CancelFunc // by number; for childMain alone

	mu  sync.Mutex
	out *json.Encoder
}

func (c *childSide) send(e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.out.Encode(e)
}

func (c *childSide) do(ctx context.Context, cmd command) {
	fail := func(err error) event {
		e := event{N: cmd.N}
		if err != nil {
			e.Error = err.Error()
			switch {
			case errors.Is(err, tenure.ErrSuccessor):
				e.Ended = "successor"
			case errors.Is(err, tenure.ErrDataLost):
				e.Ended = "data lost"
			}
		}
		return e
	}
	switch cmd.Do {
	case "campaign":
		term, err := c.node.Campaign(ctx)
		if err != nil {
			c.send(fail(err))
			return
		}
		c.believe(cmd.N, term)
	case "ended":
		if h := c.node.holding(); h != nil && h.token == cmd.Token {
			h.end(causes[cmd.Cause])
			h.Ended(causes[cmd.Cause])
		}
	case "successor", "release", "suspect":
		h := c.node.holding()
		switch {
		case h == nil || h.token != cmd.Token:
			c.send(event{N: cmd.N})
		case cmd.Do == "release":
			c.send(fail(h.Release(ctx, cmd.To)))
		case cmd.Do == "suspect":
			c.send(fail(h.Suspect(ctx, cmd.Seen)))
		default:
			c.send(fail(h.Successor(ctx, cmd.To)))
		}
	case "leader":
		l, err := c.node.Leader(ctx)
		e := fail(err)
		e.Leader = &l
		c.send(e)
	case "read":
		l, err := c.node.LeaderRead()
		e := fail(err)
		e.Leader = &l
		c.send(e)
	case "leaders":
		for l, err := range c.node.Leaders(ctx) {
			e := fail(err)
			e.Leader = &l
			c.send(e)
		}
	case "kept":
		c.send(fail(c.keeper.Wait(ctx)))
	case "close":
		err := c.node.Close(ctx)
		c.send(fail(err))
	}
}

// believe reports how long a term is trusted, until it ends, and takes down when
// it was.
func (c *childSide) believe(n int, term *tenure.Term) {
	var begun, believed, told clock.Instant
	e := event{N: n, Token: term.Token(), Deployment: term.Stamp().Deployment}
	for {
		now := clock.System().Now()
		until := now.Add(term.Remaining())
		if term.Check() != nil {
			break
		}
		believed = now
		if begun == 0 {
			begun = now
		}
		if until.Sub(told) > time.Millisecond {
			told = until
			e.Until, e.Begun = until, begun
			c.send(e)
		}
		time.Sleep(time.Millisecond)
	}
	e.Ended, e.Begun, e.Believed = causeName(term.Check()), begun, believed
	c.send(e)
}

// child is the parent's side of a node in a process of its own. It is an
// elector, and an electortest.Process.
type child struct {
	t     *testing.T
	fleet *children
	id    string
	cmd   *exec.Cmd
	in    io.WriteCloser
	done  chan struct{} // closed when the process is gone
	up    chan event    // it runs

	mu      sync.Mutex
	n       int
	pending map[int]chan event
	terms   map[fence.Token]*remoteTerm
}

// children is a fleet of processes.
type children struct {
	t      *testing.T
	net    *network
	dir    string
	group  string
	timing Timing
	ids    []string
	pulse  bool // nodes that are started from now on have keepers

	mu      sync.Mutex
	running map[string]*child
	beliefs []event // of all terms that ended
}

func newChildren(t *testing.T, group string, timing Timing, ids ...string) *children {
	f := &children{t: t, net: newNetwork(t, ids...), dir: t.TempDir(), group: group, timing: timing, ids: ids, running: map[string]*child{}}
	t.Cleanup(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, c := range f.running {
			c.kill()
		}
	})
	return f
}

// startAll starts every node at the same time.
func (f *children) startAll() []*child {
	f.t.Helper()
	cs := make([]*child, len(f.ids))
	for i, id := range f.ids {
		cs[i] = f.launch(id)
	}
	for _, c := range cs {
		c.isUp()
	}
	return cs
}

// start runs a node and waits until it is up.
func (f *children) start(id string) *child {
	f.t.Helper()
	c := f.launch(id)
	c.isUp()
	return c
}

// launch runs a node.
func (f *children) launch(id string) *child {
	peers := map[string]string{}
	for _, p := range f.ids {
		peers[p] = f.net.real[p]
	}
	raw, err := json.Marshal(childConfig{id, f.group, peers, filepath.Join(f.dir, id), f.timing, f.net.routes(id), f.pulse})
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(raw))
	cmd.Stderr = &complaints{t: f.t}
	// The node must not outlive the test, however that ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		f.t.Fatal(err)
	}
	c := &child{t: f.t, fleet: f, id: id, cmd: cmd, in: in, done: make(chan struct{}), pending: map[int]chan event{}, terms: map[fence.Token]*remoteTerm{}}
	c.up = make(chan event, 1)
	c.pending[0] = c.up
	go c.listen(out)
	f.mu.Lock()
	f.running[id] = c
	f.mu.Unlock()
	return c
}

// isUp waits until the node has opened.
func (c *child) isUp() {
	c.t.Helper()
	select {
	case <-c.up:
	case <-c.done:
		c.t.Fatalf("node %s did not start", c.id)
	case <-time.After(patience):
		c.t.Fatalf("node %s has not started in %v", c.id, patience)
	}
}

// complaints is the standard error of a node: what must not be there fails the
// test.
type complaints struct{ t *testing.T }

func (c *complaints) Write(p []byte) (int, error) {
	for _, bad := range []string{"DATA RACE", "panic: ", "fatal error: "} {
		if bytes.Contains(p, []byte(bad)) {
			c.t.Errorf("a node says: %s", p)
		}
	}
	return os.Stderr.Write(p)
}

// listen takes in what the node says.
func (c *child) listen(out io.Reader) {
	dec := json.NewDecoder(out)
	for {
		var e event
		if dec.Decode(&e) != nil {
			break
		}
		c.mu.Lock()
		if t := c.terms[e.Token]; t != nil && e.Token != 0 {
			t.update(e)
		}
		if e.Ended != "" && e.Token != 0 {
			c.fleet.mu.Lock()
			c.fleet.beliefs = append(c.fleet.beliefs, e)
			c.fleet.mu.Unlock()
		}
		to := c.pending[e.N]
		if to != nil {
			select {
			case to <- e:
			default:
			}
		}
		c.mu.Unlock()
	}
	_ = c.cmd.Wait()
	close(c.done)
}

// ask sends a command; its answers come on the channel.
func (c *child) ask(cmd command) (n int, answers chan event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	cmd.N = c.n
	answers = make(chan event, 1000)
	c.pending[cmd.N] = answers
	raw, _ := json.Marshal(cmd)
	_, _ = c.in.Write(append(raw, '\n'))
	return cmd.N, answers
}

var errGone = errors.New("the process is gone")

// answer waits for one.
func (c *child) answer(ctx context.Context, answers <-chan event) (event, error) {
	select {
	case e := <-answers:
		switch {
		case e.Ended == "successor":
			return e, fmt.Errorf("%s: %w", e.Error, tenure.ErrSuccessor)
		case e.Ended == "data lost":
			return e, fmt.Errorf("%s: %w", e.Error, tenure.ErrDataLost)
		case e.Error != "":
			return e, errors.New(e.Error)
		}
		return e, nil
	case <-c.done:
		return event{}, errGone
	case <-ctx.Done():
		return event{}, context.Cause(ctx)
	}
}

// remoteTerm is a term of the node as its process sees it, here. Both read the
// same clock, so Check here is what Check there would say.
type remoteTerm struct {
	child *child
	token fence.Token
	trust *elector.Trust
	term  *tenure.Term
	end   func(error) bool
	begun clock.Instant // in its process
}

func (t *remoteTerm) update(e event) {
	if e.Ended != "" {
		t.end(causes[e.Ended])
		return
	}
	t.trust.Set(e.Until)
}

func (t *remoteTerm) Ended(cause error) {
	t.child.ask(command{Do: "ended", Token: t.token, Cause: causeName(cause)})
}

func (t *remoteTerm) Successor(ctx context.Context, to string) error {
	_, answers := t.child.ask(command{Do: "successor", Token: t.token, To: to})
	_, err := t.child.answer(ctx, answers)
	return err
}

func (t *remoteTerm) Suspect(ctx context.Context, seen fence.Token) error {
	_, answers := t.child.ask(command{Do: "suspect", Token: t.token, Seen: seen})
	_, err := t.child.answer(ctx, answers)
	return err
}

func (t *remoteTerm) Release(ctx context.Context, to string) error {
	_, answers := t.child.ask(command{Do: "release", Token: t.token, To: to})
	_, err := t.child.answer(ctx, answers)
	return err
}

// Elector implements electortest.Process.
func (c *child) Elector() tenure.Elector { return c }

func (c *child) Campaign(ctx context.Context) (*tenure.Term, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	n, answers := c.ask(command{Do: "campaign"})
	e, err := c.answer(ctx, answers)
	if err != nil && ctx.Err() != nil {
		c.ask(command{Do: "cancel", Token: fence.Token(n)})
		if e, err = c.answer(context.Background(), answers); err != nil {
			return nil, context.Cause(ctx)
		}
	}
	if err != nil {
		return nil, err
	}
	t := &remoteTerm{child: c, token: e.Token, begun: e.Begun, trust: elector.NewTrust(clock.System())}
	t.term, t.end = elector.NewTerm(elector.TermConfig{
		Group: c.fleet.group, Token: e.Token, Deployment: e.Deployment, Candidate: tenure.Candidate{ID: c.id}, Trust: t.trust, Grant: t,
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	t.update(e)
	c.terms[e.Token] = t
	// What came between the answer and now.
	for len(answers) > 0 {
		t.update(<-answers)
	}
	return t.term, nil
}

func (c *child) Leader(ctx context.Context) (tenure.Leader, error) {
	return c.leader(ctx, "leader")
}

func (c *child) leader(ctx context.Context, how string) (tenure.Leader, error) {
	_, answers := c.ask(command{Do: how})
	e, err := c.answer(ctx, answers)
	if e.Leader == nil {
		return tenure.Leader{Group: c.fleet.group}, err
	}
	return *e.Leader, err
}

// read is LeaderRead there.
func (c *child) read(ctx context.Context) (tenure.Leader, error) {
	return c.leader(ctx, "read")
}

func (c *child) Leaders(ctx context.Context) iter.Seq2[tenure.Leader, error] {
	return func(yield func(tenure.Leader, error) bool) {
		n, answers := c.ask(command{Do: "leaders"})
		defer c.ask(command{Do: "cancel", Token: fence.Token(n)})
		for {
			e, err := c.answer(ctx, answers)
			if e.Leader == nil {
				return // ctx ended, or the process did
			}
			if !yield(*e.Leader, err) {
				return
			}
		}
	}
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

func (c *child) Crash()     { c.kill() }
func (c *child) Pause()     { _ = c.cmd.Process.Signal(syscall.SIGSTOP) }
func (c *child) Resume()    { _ = c.cmd.Process.Signal(syscall.SIGCONT) }
func (c *child) Partition() { c.fleet.net.isolate(c.id) }
func (c *child) Heal()      { c.fleet.net.heal(c.id) }

func (c *child) Close(ctx context.Context) error {
	_, answers := c.ask(command{Do: "close"})
	_, err := c.answer(ctx, answers)
	if errors.Is(err, errGone) {
		return nil
	}
	_ = c.in.Close()
	return err
}
