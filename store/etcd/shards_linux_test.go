package etcd_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/pulse"
	"github.com/tenurehq/tenure/shard"
	"github.com/tenurehq/tenure/store"
)

// shardsEnv turns the test binary into a process that runs a set of shards.
const shardsEnv = "TENURE_TEST_SHARDS"

// shardsConfig is the value of shardsEnv.
type shardsConfig struct {
	ID     string
	Count  int
	Keeper bool
	TTL    time.Duration
	Settle time.Duration
}

// shardEvent is a line of output: the work of a shard begins, or has returned.
type shardEvent struct {
	Shard int
	Begin bool
	Token uint64
	Moved bool // the term had not ended when work returned
	At    clock.Instant
}

func runShards(ctx context.Context, connect func(context.Context) (store.Store, error)) error {
	var cfg shardsConfig
	if err := json.Unmarshal([]byte(os.Getenv(shardsEnv)), &cfg); err != nil {
		return err
	}
	st, err := connect(ctx)
	if err != nil {
		return err
	}
	node := lease.Config{
		Candidate: tenure.Candidate{ID: cfg.ID}, Scope: store.Scope{"orders-*"}, Timing: lease.Timing{TTL: cfg.TTL}, Log: slog.New(slog.DiscardHandler),
	}
	if cfg.Keeper {
		keeper, err := pulse.Start(nil)
		if err != nil {
			return err
		}
		node.Keeper = keeper
	}
	n, err := lease.New(st, node)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(e shardEvent) {
		mu.Lock()
		defer mu.Unlock()
		e.At = clock.System().Now()
		_ = out.Encode(e)
	}
	ctx, stop := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	err = shard.Run(ctx, n, shard.Config{Set: "orders", Count: cfg.Count, Settle: cfg.Settle}, func(ctx context.Context, s shard.Shard) error {
		say(shardEvent{Shard: s.Index, Begin: true, Token: uint64(s.Term.Token())})
		<-ctx.Done()
		say(shardEvent{Shard: s.Index, Token: uint64(s.Term.Token()), Moved: s.Term.Check() == nil})
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		return err
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return n.Close(closing)
}

// shardFleet is processes that run one set, and who works on which shard.
type shardFleet struct {
	t         *testing.T
	cfg       shardsConfig
	endpoints []string

	mu     sync.Mutex
	owner  []string
	token  []uint64 // of the newest owner
	events []shardEvent
	last   time.Time // of the last event
	procs  map[string]*shardProc
}

type shardProc struct {
	cmd  *exec.Cmd
	in   io.Closer
	read chan struct{} // all its output was read
}

func (f *shardFleet) start(id string, keeper bool) {
	f.t.Helper()
	cfg := f.cfg
	cfg.ID, cfg.Keeper = id, keeper
	text, err := json.Marshal(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), leaderEnv+"="+strings.Join(f.endpoints, ","), shardsEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	r, w, err := os.Pipe() // not StdoutPipe: Wait would close it before all was read
	if err != nil {
		f.t.Fatal(err)
	}
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	_ = w.Close()
	p := &shardProc{cmd, in, make(chan struct{})}
	f.procs[id] = p
	go func() {
		defer close(p.read)
		defer func() { _ = r.Close() }()
		for lines := bufio.NewScanner(r); lines.Scan(); {
			var e shardEvent
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				f.take(id, e)
			}
		}
	}()
}

// take takes an event. Those of two processes may arrive in any order.
func (f *shardFleet) take(id string, e shardEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = time.Now()
	f.events = append(f.events, e)
	switch i := e.Shard; {
	case e.Begin && e.Token > f.token[i]:
		f.owner[i], f.token[i] = id, e.Token
	case !e.Begin && e.Token == f.token[i]:
		f.owner[i] = ""
	}
}

// reset forgets the events, and returns who owns each shard.
func (f *shardFleet) reset() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = nil
	return slices.Clone(f.owner)
}

// seen is what happened since the last reset: how often work began, how many terms ended by
// themselves, and the time without an owner that is longer than 99 of 100. No shard may have had two owners.
func (f *shardFleet) seen() (begins, lost int, gap99 time.Duration) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.SortStableFunc(f.events, func(a, b shardEvent) int {
		return cmp.Or(cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.Token, b.Token))
	})
	var gaps []time.Duration
	for i, e := range f.events {
		switch {
		case !e.Begin && !e.Moved:
			lost++
		case e.Begin:
			begins++
		}
		if i == 0 || !e.Begin || f.events[i-1].Shard != e.Shard {
			continue
		}
		switch was := f.events[i-1]; {
		case was.Token == e.Token:
			f.t.Errorf("shard %d: work began twice with token %d", e.Shard, e.Token)
		case was.Begin: // it was killed
		case e.At < was.At && was.Moved:
			f.t.Errorf("shard %d: work began with token %d while that with token %d had not returned", e.Shard, e.Token, was.Token)
		default:
			gaps = append(gaps, e.At.Sub(was.At))
		}
	}
	slices.Sort(gaps)
	if len(gaps) > 0 {
		gap99 = gaps[len(gaps)*99/100]
	}
	return begins, lost, gap99
}

// settled waits until every shard has an owner, and nothing has happened for some Settles.
func (f *shardFleet) settled(quiet time.Duration) {
	f.t.Helper()
	eventually(f.t, 5*time.Minute, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if free := len(f.owner) - f.ownedNow(); free > 0 || time.Since(f.last) < quiet {
			return fmt.Errorf("%d shards have no owner; the last event was %v ago", free, time.Since(f.last).Round(time.Millisecond))
		}
		return nil
	})
}

// ownedNow counts the shards with an owner. f.mu is held.
func (f *shardFleet) ownedNow() (n int) {
	for _, o := range f.owner {
		if o != "" {
			n++
		}
	}
	return n
}

// end stops a process: it hands over its shards and ends.
func (f *shardFleet) end(id string) {
	f.t.Helper()
	p := f.procs[id]
	delete(f.procs, id)
	_ = p.in.Close()
	<-p.read
	if err := p.cmd.Wait(); err != nil {
		f.t.Errorf("%s: %v", id, err)
	}
}

// kill kills a process, and measures how long its shards have no owner.
func (f *shardFleet) kill(id string) (took time.Duration, shards, others int) {
	f.t.Helper()
	p := f.procs[id]
	delete(f.procs, id)
	before := f.reset()
	killed := time.Now()
	if err := p.cmd.Process.Kill(); err != nil {
		f.t.Fatal(err)
	}
	<-p.read
	_ = p.cmd.Wait()
	f.mu.Lock()
	for i, o := range f.owner {
		if o == id {
			f.owner[i] = ""
		}
	}
	f.mu.Unlock()
	eventually(f.t, 5*time.Minute, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if free := len(f.owner) - f.ownedNow(); free > 0 {
			return fmt.Errorf("%d shards have no owner", free)
		}
		took = f.last.Sub(killed)
		return nil
	})
	for _, o := range before {
		if o == id {
			shards++
		}
	}
	_, others, _ = f.seen()
	return took, shards, others
}

// moved counts the shards that have another owner than before.
func (f *shardFleet) moved(before []string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, o := range f.owner {
		if o != before[i] {
			n++
		}
	}
	return n
}

// Processes that share the shards of a set: when one is killed only its shards change their owner,
// one that joins gets shards, and a rolling restart leaves no shard without an owner. Tokens of each
// shard grow. TENURE_BENCH_SHARDS=1 (make bench-shards) runs 10,000 shards over ten processes, and
// requires the bars, on an idle machine.
func TestShards(t *testing.T) {
	bench := os.Getenv("TENURE_BENCH_SHARDS") != ""
	count, processes := 200, 4
	cfg := shardsConfig{TTL: 30 * time.Second, Settle: 300 * time.Millisecond}
	if bench {
		count, processes = 10_000, 10
		cfg.TTL, cfg.Settle = 5*time.Second, 4*time.Second
	}
	cfg.Count = count
	bar := func(name string, is, most float64, unit string) {
		verdict := "ok"
		if is > most {
			verdict = "missed"
		}
		t.Logf("%-62s %9.3f %-2s  bar %8.3f  %s", name, is, unit, most, verdict)
		if bench && is > most {
			t.Errorf("%s: %.3f %s, the bar is %.3f", name, is, unit, most)
		}
	}
	f := &shardFleet{
		t: t, cfg: cfg, endpoints: enginetest.Cluster(t, 1).Endpoints(),
		owner: make([]string, count), token: make([]uint64, count), procs: map[string]*shardProc{},
	}
	t.Cleanup(func() {
		for _, p := range f.procs {
			_ = p.in.Close()
		}
		for _, p := range f.procs {
			late := time.AfterFunc(30*time.Second, func() { _ = p.cmd.Process.Kill() })
			<-p.read
			late.Stop()
			_ = p.cmd.Wait()
		}
	})
	id := func(i int) string { return fmt.Sprintf("node-%d", i) }
	quiet := 3 * cfg.Settle
	for i := range processes {
		f.start(id(i), i > 0)
	}
	f.settled(quiet)
	share := map[string]int{}
	most := 0
	for _, o := range f.reset() {
		share[o]++
		most = max(most, share[o])
	}
	bar("largest share, beside the mean", float64(most)*float64(processes)/float64(count), 1.10, "")

	client, err := clientv3.New(clientv3.Config{Endpoints: f.endpoints})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	revision := func() int64 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r, err := client.Get(ctx, "none")
		if err != nil {
			t.Fatal(err)
		}
		return r.Header.Revision
	}
	was := revision()
	if bench {
		time.Sleep(4 * cfg.TTL)
	}
	bar("engine writes at rest that are no keep-alives", float64(revision()-was), 0, "")

	took, shards, others := f.kill(id(1))
	bar(fmt.Sprintf("process with a keeper killed: %d shards led again after", shards), took.Seconds(), 0.3, "s")
	if shards == 0 || took > cfg.TTL && !bench {
		t.Errorf("%d shards led again after %v: that is the TTL, not the proof of death", shards, took)
	}
	if others > 0 {
		t.Errorf("%d terms of other shards ended", others)
	}
	f.settled(quiet)
	f.start(id(1), true)
	f.settled(2 * quiet)

	before := f.reset()
	f.start(id(processes), true)
	joined := func() (n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, o := range f.owner {
			if o == id(processes) {
				n++
			}
		}
		return n
	}
	eventually(t, 5*time.Minute, func() error {
		if joined() == 0 {
			return errors.New("the process that joined has no shard")
		}
		return nil
	})
	f.settled(2 * quiet)
	bar("process joined: moved shards", float64(f.moved(before))/float64(count), 1/float64(processes+1)+0.01, "")
	_, _, gap := f.seen()
	bar("  time without an owner, p99", gap.Seconds()*1000, 50, "ms")

	f.reset()
	restarts := processes
	if !bench {
		restarts = 1
	}
	for i := range restarts {
		f.end(id(i + 1))
		f.settled(quiet)
		f.start(id(i+1), true)
		f.settled(2 * quiet)
	}
	begins, _, gap := f.seen()
	bar("rolling restart: moves of a shard on average", float64(begins)/float64(count), 2.2, "")
	bar("  time without an owner, p99", gap.Seconds()*1000, 100, "ms")

	if !bench {
		return // the TTL of 30 s is too long to wait for
	}
	took, shards, others = f.kill(id(0))
	bar(fmt.Sprintf("process without a keeper killed: %d shards led again after", shards), took.Seconds(), (cfg.TTL + time.Second).Seconds(), "s")
	if others > 0 {
		t.Errorf("%d terms of other shards ended", others)
	}
}
