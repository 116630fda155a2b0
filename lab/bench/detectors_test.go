//go:build linux

package bench

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/pulse"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
)

// detector is a way to notice that a process has died. One with a TTL is a session in etcd; the
// others are settings of SWIM.
type detector struct {
	name       string
	ttl        time.Duration
	fenced     bool // hints may end the session
	kept       bool // a keeper ends the session
	probe      time.Duration
	timeout    time.Duration
	suspicions int
}

func detectors() []detector {
	const ms = time.Millisecond
	return []detector{
		{name: "TTL 2s", ttl: 2 * time.Second},
		{name: "TTL 10s", ttl: 10 * time.Second},
		{name: "SWIM, probe 1s", probe: time.Second, timeout: 500 * ms, suspicions: 4}, // memberlist's preset for one network
		{name: "SWIM, probe 100ms", probe: 100 * ms, timeout: 50 * ms, suspicions: 2},
		{name: "SWIM, probe 50ms", probe: 50 * ms, timeout: 20 * ms, suspicions: 2},
		{name: "hint", ttl: 30 * time.Second, fenced: true},
		{name: "proof", ttl: 30 * time.Second, kept: true},
	}
}

// detectorEnv makes this test binary a member; its value is a memberConfig, or busy.
const (
	detectorEnv = "TENURE_BENCH_MEMBER"
	busy        = "busy"
)

type memberConfig struct {
	Name      string
	Endpoints []string
	Join      []string // an address for each detector; empty for those of etcd
}

// member is a process whose death is to be noticed, or the observer.
type member struct {
	loss atomic.Int64   // percent of the messages that are lost
	sent []atomic.Int64 // messages, by detector
}

// lost reports whether the next message is lost.
func (m *member) lost() bool { return mathrand.Int64N(100) < m.loss.Load() }

// resend waits as TCP does for a message that is lost: 200 ms, and twice as long each further time.
func (m *member) resend() {
	for wait := 200 * time.Millisecond; m.lost(); wait *= 2 {
		time.Sleep(wait)
	}
}

// lossy is a transport that counts and loses messages.
type lossy struct {
	*memberlist.NetTransport
	m *member
	n *atomic.Int64
}

func (l *lossy) WriteTo(b []byte, addr string) (time.Time, error) {
	return l.WriteToAddress(b, memberlist.Address{Addr: addr})
}

func (l *lossy) WriteToAddress(b []byte, addr memberlist.Address) (time.Time, error) {
	l.n.Add(1)
	if l.m.lost() {
		return time.Now(), nil
	}
	return l.NetTransport.WriteToAddress(b, addr)
}

func (l *lossy) DialAddressTimeout(addr memberlist.Address, timeout time.Duration) (net.Conn, error) {
	l.n.Add(1)
	began := time.Now()
	if l.m.resend(); time.Since(began) >= timeout {
		return nil, errors.New("a connection that was lost")
	}
	return l.NetTransport.DialAddressTimeout(addr, timeout-time.Since(began))
}

// swim starts a detector of SWIM and returns its address.
func (m *member) swim(i int, name string, events memberlist.EventDelegate) (*memberlist.Memberlist, string, error) {
	d := detectors()[i]
	transport, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{"127.0.0.1"}, Logger: slog.NewLogLogger(slog.DiscardHandler, 0)})
	if err != nil {
		return nil, "", err
	}
	cfg := memberlist.DefaultLANConfig()
	cfg.Name, cfg.BindAddr, cfg.BindPort, cfg.AdvertisePort = name, "127.0.0.1", transport.GetAutoBindPort(), transport.GetAutoBindPort()
	cfg.ProbeInterval, cfg.ProbeTimeout, cfg.SuspicionMult = d.probe, d.timeout, d.suspicions
	cfg.GossipInterval = min(cfg.GossipInterval, d.probe)
	cfg.Transport, cfg.Events, cfg.LogOutput = &lossy{transport, m, &m.sent[i]}, events, io.Discard
	list, err := memberlist.Create(cfg)
	return list, net.JoinHostPort("127.0.0.1", strconv.Itoa(cfg.AdvertisePort)), err
}

// session keeps a session alive, and opens another one when it has ended.
func (m *member) session(ctx context.Context, i int, st store.Store, name, address string, keeper *pulse.Client) {
	d := detectors()[i]
	instance := rand.Text()
	for ctx.Err() == nil {
		s, err := st.Open(ctx, tenure.Candidate{ID: fmt.Sprintf("d%d.%s", i, name), Address: address}, d.ttl, store.OpenOptions{Scope: store.Scope{"g"}, Instance: instance, Fenced: d.fenced})
		if err != nil {
			continue
		}
		if d.kept {
			keeper.Keep(s, instance)
		}
		for !errors.Is(err, store.ErrSessionDead) {
			time.Sleep(d.ttl / 4)
			m.resend()
			_, err = st.KeepAlive(ctx, s.ID)
			m.sent[i].Add(2) // and its answer
		}
	}
}

// memberMain is the process of a member. It prints a line when it takes part in everything, and
// obeys "loss PERCENT" and "count".
func memberMain(raw string) error {
	if raw == busy {
		for i := 0; ; i++ {
			_ = i
		}
	}
	var cfg memberConfig
	if err := json.Unmarshal([]byte(raw), &cfg); err != nil {
		return err
	}
	ctx := context.Background()
	connect := func(ctx context.Context) (store.Store, error) {
		return etcd.Open(ctx, etcd.Config{Endpoints: cfg.Endpoints})
	}
	pulse.Main(connect)
	st, err := connect(ctx)
	if err != nil {
		return err
	}
	keeper, err := pulse.Start(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		for {
			if conn, err := ln.Accept(); err == nil {
				go func() { _, _ = io.Copy(io.Discard, conn); _ = conn.Close() }()
			}
		}
	}()
	m := &member{sent: make([]atomic.Int64, len(detectors()))}
	for i, d := range detectors() {
		if d.ttl != 0 {
			go m.session(ctx, i, st, cfg.Name, ln.Addr().String(), keeper)
			continue
		}
		list, _, err := m.swim(i, cfg.Name, nil)
		if err == nil {
			_, err = list.Join([]string{cfg.Join[i]})
		}
		if err != nil {
			return err
		}
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		switch what, percent, _ := strings.Cut(in.Text(), " "); what {
		case "loss":
			n, _ := strconv.ParseInt(percent, 10, 64)
			m.loss.Store(n)
		case "kept":
			if err := keeper.Wait(ctx); err != nil {
				return err
			}
			fmt.Println("kept")
		case "count":
			var sent []int64
			for i := range m.sent {
				sent = append(sent, m.sent[i].Swap(0))
			}
			if err := json.NewEncoder(os.Stdout).Encode(sent); err != nil {
				return err
			}
		}
	}
	return nil
}

// observer notices deaths in every way, and knows who has really died.
type observer struct {
	member
	t         *testing.T
	endpoints []string
	join      []string

	mu      sync.Mutex
	members map[string]*running
	changed chan struct{}     // closed at the next change of what is below
	seen    map[string][]bool // by member and detector: it takes part
	died    map[string]time.Time
	took    [][]time.Duration
	wrong   []int // deaths of processes that live
}

type running struct {
	*child.Process
	in  io.Writer
	out *bufio.Scanner
}

func (o *observer) change(do func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	do()
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *observer) joined(i int, name string) {
	o.change(func() {
		if o.seen[name] == nil {
			o.seen[name] = make([]bool, len(detectors()))
		}
		o.seen[name][i] = true
	})
}

func (o *observer) left(i int, name string) {
	now := time.Now()
	o.change(func() {
		if len(o.seen[name]) == 0 || !o.seen[name][i] {
			return
		}
		o.seen[name][i] = false
		if at, dead := o.died[name]; dead {
			o.took[i] = append(o.took[i], now.Sub(at))
		} else if o.members[name] != nil {
			o.wrong[i]++
		}
	})
}

// await waits until a member takes part, or does not, for every detector.
func (o *observer) await(name string, part bool) {
	o.t.Helper()
	for end := time.After(2 * time.Minute); ; {
		o.mu.Lock()
		all, changed := len(o.seen[name]) > 0 && !slices.Contains(o.seen[name], !part), o.changed
		now := fmt.Sprint(o.seen[name])
		o.mu.Unlock()
		if all {
			return
		}
		select {
		case <-changed:
		case <-end:
			o.t.Fatalf("%s takes part: %s, want all %v", name, now, part)
		}
	}
}

// swimEvents are the events of one detector.
type swimEvents struct {
	o *observer
	i int
}

func (e swimEvents) NotifyJoin(n *memberlist.Node)  { e.o.joined(e.i, n.Name) }
func (e swimEvents) NotifyLeave(n *memberlist.Node) { e.o.left(e.i, n.Name) }
func (swimEvents) NotifyUpdate(*memberlist.Node)    {}

// watch observes the sessions.
func (o *observer) watch(ctx context.Context, st store.Store) {
	owners := map[store.SessionID]string{}
	owner := func(id store.SessionID) (i int, name string) {
		n, name, _ := strings.Cut(strings.TrimPrefix(owners[id], "d"), ".")
		i, _ = strconv.Atoi(n)
		return i, name
	}
	for ctx.Err() == nil {
		for u, err := range st.Watch(ctx, store.Scope{"g"}) {
			switch {
			case err != nil:
			case u.Kind == store.SessionBegan:
				owners[u.Session.ID] = u.Session.Candidate.ID
				o.joined(owner(u.Session.ID))
			case u.Kind == store.SessionEnded:
				o.left(owner(u.Session.ID))
			}
		}
	}
}

func (o *observer) start(name string) {
	o.t.Helper()
	raw, err := json.Marshal(memberConfig{name, o.endpoints, o.join})
	if err != nil {
		o.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), detectorEnv+"="+string(raw))
	cmd.Stderr, cmd.WaitDelay = os.Stderr, 5*time.Second
	child.DieWithParent(cmd)
	in, ierr := cmd.StdinPipe()
	r, w, oerr := os.Pipe()
	if err := errors.Join(ierr, oerr); err != nil {
		o.t.Fatal(err)
	}
	cmd.Stdout = w
	p, err := child.Start(cmd, nil)
	_ = w.Close()
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { p.Kill(); _ = r.Close() })
	m := &running{p, in, bufio.NewScanner(r)}
	o.change(func() { o.members[name] = m })
	if !m.out.Scan() || m.out.Text() != "ready" {
		o.t.Fatalf("%s did not start: %q", name, m.out.Text())
	}
	o.await(name, true)
	_, _ = io.WriteString(in, "kept\n")
	m.out.Scan()
}

func (o *observer) names() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var names []string
	for name := range o.members {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// mistakes disturbs the members for a time and returns, by detector, how often a living process
// was taken for dead.
func (o *observer) mistakes(disturb func() (undo func())) []int {
	o.t.Helper()
	o.mu.Lock()
	before := slices.Clone(o.wrong)
	o.mu.Unlock()
	disturb()()
	for _, name := range o.names() {
		o.await(name, true)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n := slices.Clone(o.wrong)
	for i := range n {
		n[i] -= before[i]
	}
	return n
}

// TestDetectors compares ways to notice that a process has died: five processes on one machine,
// of which one observes. TENURE_BENCH_DETECTORS is the number of kills, TENURE_BENCH_FOR how long
// each disturbance lasts. A death that a keeper proved must be real, and must be the first to be
// noticed.
func TestDetectors(t *testing.T) {
	kills, err := strconv.Atoi(os.Getenv("TENURE_BENCH_DETECTORS"))
	if err != nil {
		t.Skip("measures on an idle machine: set TENURE_BENCH_DETECTORS to a number of kills")
	}
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv("TENURE_BENCH_FOR"), "2m"))
	if err != nil {
		t.Fatal(err)
	}
	all := detectors()
	o := &observer{
		t: t, endpoints: enginetest.Cluster(t, 1).Endpoints(), join: make([]string, len(all)), members: map[string]*running{}, changed: make(chan struct{}),
		seen: map[string][]bool{}, died: map[string]time.Time{}, took: make([][]time.Duration, len(all)), wrong: make([]int, len(all)),
	}
	o.sent = make([]atomic.Int64, len(all))
	st, err := etcd.Open(t.Context(), etcd.Config{Endpoints: o.endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	ctx, cancel := context.WithCancel(context.Background())
	var watches sync.WaitGroup
	watches.Go(func() { o.watch(ctx, st) })
	watches.Go(func() { pulse.NewHints(st, slog.New(slog.DiscardHandler)).Run(ctx, store.Scope{"g"}) })
	t.Cleanup(func() { cancel(); watches.Wait() })
	for i, d := range all {
		if d.ttl != 0 {
			continue
		}
		list, address, err := o.swim(i, "observer", swimEvents{o, i})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = list.Shutdown() })
		o.join[i] = address
	}
	const members = 4
	for n := range members {
		o.start(fmt.Sprint("m", n))
	}
	lossOf := func(percent int64) {
		o.loss.Store(percent)
		for _, m := range o.members {
			_, _ = fmt.Fprintf(m.in, "loss %d\n", percent)
		}
	}
	count := func() []int64 {
		sum := make([]int64, len(all))
		for _, m := range o.members {
			var sent []int64
			if _, err := io.WriteString(m.in, "count\n"); err != nil || !m.out.Scan() || json.Unmarshal(m.out.Bytes(), &sent) != nil {
				t.Fatalf("count: %v, %q", err, m.out.Text())
			}
			for i, n := range sent {
				sum[i] += n
			}
		}
		return sum
	}
	began := time.Now()
	count()
	o.mistakes(func() func() { time.Sleep(lasts); return func() {} })
	messages, seconds := count(), time.Since(began).Seconds()*members
	paused := o.mistakes(func() func() {
		for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(2 * time.Second) {
			names := o.names()
			p := o.members[names[mathrand.IntN(len(names))]].Cmd.Process
			_ = child.Pause(p)
			time.Sleep(time.Second)
			_ = child.Resume(p)
		}
		return func() {}
	})
	lost := o.mistakes(func() func() { lossOf(20); time.Sleep(lasts); return func() { lossOf(0) } })
	loaded := o.mistakes(func() func() {
		var burners []*child.Process
		for range 4 * runtime.NumCPU() {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), detectorEnv+"="+busy)
			child.DieWithParent(cmd)
			p, err := child.Start(cmd, nil)
			if err != nil {
				t.Fatal(err)
			}
			burners = append(burners, p)
		}
		time.Sleep(lasts)
		return func() {
			for _, p := range burners {
				p.Kill()
			}
		}
	})
	for n := range kills {
		name := o.names()[mathrand.IntN(members)]
		p := o.members[name]
		o.change(func() { delete(o.members, name); o.died[name] = time.Now() })
		p.Kill()
		o.await(name, false)
		o.start(fmt.Sprint("m", members+n))
	}
	t.Logf("kill -9, %d times; then how often a living process was taken for dead in %v each: paused for 1 s every 3 s, 20 %% of the messages lost, 4 busy processes a core", kills, lasts)
	t.Logf("%-18s %9s %9s %8s %8s %8s   messages a second and process", "", "p50", "max", "paused", "loss", "busy")
	for i, d := range all {
		slices.Sort(o.took[i])
		took := o.took[i]
		t.Logf("%-18s %9v %9v %8d %8d %8d   %.1f", d.name, took[len(took)/2].Round(100*time.Microsecond), took[len(took)-1].Round(100*time.Microsecond), paused[i], lost[i], loaded[i], float64(messages[i])/seconds)
		if proof := o.took[len(all)-1]; d.kept && paused[i]+lost[i]+loaded[i] > 0 || d.ttl != 0 && !d.fenced && took[len(took)/2] < proof[len(proof)/2] {
			t.Errorf("%s: a keeper must be right, and faster than the TTL", d.name)
		}
	}
}
