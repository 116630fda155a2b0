//go:build linux

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
)

// candidateEnv makes this test binary a candidate; its value is a role.
const candidateEnv = "TENURE_BENCH_CANDIDATE"

func TestMain(m *testing.M) {
	if raw := os.Getenv(candidateEnv); raw != "" {
		if err := candidateMain(raw); err != nil {
			fmt.Fprintln(os.Stderr, "candidate:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if raw := os.Getenv(detectorEnv); raw != "" {
		if err := memberMain(raw); err != nil {
			fmt.Fprintln(os.Stderr, "member:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if raw := os.Getenv(helperEnv); raw != "" {
		if err := helperMain(raw); err != nil {
			fmt.Fprintln(os.Stderr, "aide:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The ways to elect.
const (
	onEtcd = "tenure on etcd"
	stock  = "etcd concurrency.Election"
	onRaft = "tenure on raft"
)

// role is what a candidate process is.
type role struct {
	Kind, ID, Group string
	TTL             time.Duration
	Endpoints       []string // etcd
	Peers           map[string]string
	DataDir         string
	Timing          raft.Timing
}

// order is sent to a candidate's standard input, one JSON per line; news is its output.
type order struct{ Do, To string }

type news struct {
	What  string // ready, began, ended or failed
	At    clock.Instant
	Error string `json:",omitempty"`
}

// contender is one way to elect, inside a process. A handover says when the old term ended; it
// waits for a successor that is about to arrive.
type contender interface {
	campaign(ctx context.Context) error
	resign(ctx context.Context, ended func(clock.Instant)) error
	transfer(ctx context.Context, to string, ended func(clock.Instant)) error
}

func candidateMain(raw string) error {
	var r role
	if err := json.Unmarshal([]byte(raw), &r); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(what string, at clock.Instant, err error) {
		mu.Lock()
		defer mu.Unlock()
		n := news{What: what, At: at}
		if err != nil {
			n.Error = err.Error()
		}
		_ = out.Encode(n)
	}
	c, err := contend(ctx, r)
	if err != nil {
		return err
	}
	now := clock.System()
	say("ready", now.Now(), nil)
	var work sync.WaitGroup
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			return err
		}
		work.Go(func() {
			limit := 2 * time.Minute
			if o.Do == "campaign" {
				limit = time.Hour // it may never be elected
			}
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			ended := func(at clock.Instant) { say("ended", at, nil) }
			var err error
			switch o.Do {
			case "campaign":
				if err = c.campaign(ctx); err == nil {
					say("began", now.Now(), nil)
				}
			case "resign":
				err = c.resign(ctx, ended)
			case "transfer":
				err = c.transfer(ctx, o.To, ended)
			default:
				err = fmt.Errorf("unknown order %q", o.Do)
			}
			if err != nil {
				say("failed", now.Now(), fmt.Errorf("%s: %w", o.Do, err))
			}
		})
	}
	cancel() // the parent has ended or closed our input
	work.Wait()
	return in.Err()
}

func contend(ctx context.Context, r role) (contender, error) {
	switch r.Kind {
	case onEtcd:
		s, err := etcd.Open(ctx, etcd.Config{Endpoints: r.Endpoints})
		if err != nil {
			return nil, err
		}
		n, err := lease.New(s, lease.Config{
			Candidate: tenure.Candidate{ID: r.ID}, Scope: store.Scope{r.Group}, Timing: lease.Timing{TTL: r.TTL},
			Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return nil, err
		}
		e, err := n.Elector(r.Group)
		return &ours{elector: e}, err
	case onRaft:
		n, err := raft.Open(raft.Config{
			Candidate: tenure.Candidate{ID: r.ID}, Group: r.Group, Peers: r.Peers, DataDir: r.DataDir, Timing: r.Timing,
			Log: slog.New(slog.DiscardHandler),
		})
		return &ours{elector: n}, err
	case stock:
		c, err := clientv3.New(clientv3.Config{Endpoints: r.Endpoints, Logger: zap.NewNop()})
		if err != nil {
			return nil, err
		}
		s, err := concurrency.NewSession(c, concurrency.WithTTL(int(r.TTL/time.Second)))
		if err != nil {
			return nil, err
		}
		prefix := "/stock/" + r.Group
		return &theirs{id: r.ID, client: c, prefix: prefix, election: concurrency.NewElection(s, prefix)}, nil
	default:
		return nil, fmt.Errorf("unknown kind %q", r.Kind)
	}
}

// ours is a candidate with any tenure.Elector.
type ours struct {
	elector tenure.Elector
	term    *tenure.Term
}

func (o *ours) campaign(ctx context.Context) (err error) {
	o.term, err = o.elector.Campaign(ctx)
	return err
}

func (o *ours) resign(ctx context.Context, ended func(clock.Instant)) error {
	ended(clock.System().Now())
	return o.term.Resign(ctx)
}

// transfer waits for the successor during the term, and then ends the term.
func (o *ours) transfer(ctx context.Context, to string, ended func(clock.Instant)) error {
	over := make(chan clock.Instant, 1)
	defer context.AfterFunc(o.term.Context(), func() { over <- clock.System().Now() })()
	for {
		err := o.term.TransferTo(ctx, to)
		if errors.Is(err, tenure.ErrSuccessor) && o.term.Check() == nil && ctx.Err() == nil {
			time.Sleep(time.Millisecond) // the successor has not joined yet
			continue
		}
		if err == nil {
			ended(<-over)
		}
		return err
	}
}

// theirs is etcd's own election. It cannot hand over to a chosen candidate.
type theirs struct {
	id       string
	client   *clientv3.Client
	prefix   string
	election *concurrency.Election
}

func (e *theirs) campaign(ctx context.Context) error { return e.election.Campaign(ctx, e.id) }

func (e *theirs) resign(ctx context.Context, ended func(clock.Instant)) error {
	ended(clock.System().Now())
	return e.election.Resign(ctx)
}

func (e *theirs) transfer(ctx context.Context, _ string, ended func(clock.Instant)) error {
	for {
		r, err := e.client.Get(ctx, e.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return err
		}
		if r.Count > 1 {
			return e.resign(ctx, ended)
		}
		time.Sleep(time.Millisecond)
	}
}

// candidate is a candidate's process, seen from the benchmark.
type candidate struct {
	role
	t       *testing.T
	cmd     *exec.Cmd
	process *child.Process
	in      io.WriteCloser
	news    chan news
}

// start starts the process and waits until it is ready.
func start(t *testing.T, r role) *candidate {
	t.Helper()
	c := &candidate{role: r, t: t, news: make(chan news, 16)}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	c.cmd = exec.Command(self)
	c.cmd.Env = append(os.Environ(), candidateEnv+"="+string(raw))
	c.cmd.Stderr = os.Stderr
	child.DieWithParent(c.cmd)
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.process, err = child.Start(c.cmd, func() {
		in := bufio.NewScanner(out)
		for in.Scan() {
			var n news
			if json.Unmarshal(in.Bytes(), &n) == nil {
				c.news <- n
			}
		}
		close(c.news)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	c.await("ready")
	return c
}

func (c *candidate) kill() {
	_ = c.cmd.Process.Kill()
	for range c.news { // wait for the end of the reader
	}
	c.process.Kill()
}

func (c *candidate) order(do, to string) {
	c.t.Helper()
	if err := json.NewEncoder(c.in).Encode(order{do, to}); err != nil {
		c.t.Fatalf("%s %s: %v", c.Kind, c.ID, err)
	}
}

func (c *candidate) await(what string) clock.Instant {
	c.t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		select {
		case n, ok := <-c.news:
			switch {
			case !ok:
				c.t.Fatalf("%s %s ended before %q", c.Kind, c.ID, what)
			case n.What == "failed":
				c.t.Fatalf("%s %s: %s", c.Kind, c.ID, n.Error)
			case n.What == what:
				return n.At
			}
		case <-limit:
			c.t.Fatalf("%s %s: no %q in two minutes", c.Kind, c.ID, what)
		}
	}
}
