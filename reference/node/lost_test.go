package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/client"
	"github.com/tenurehq/tenure/reference/node"
)

// long reads a number from the environment for the long form of a test; 0: the short form.
func long(t *testing.T, name string) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q", name, s)
	}
	return n
}

// callers take numbers from any node that answers, and record them.
type callers struct {
	stop func()

	mu    sync.Mutex
	given map[uint64]bool
	twice []uint64
	last  uint64
}

func startCallers(t *testing.T, nodes ...*process) *callers {
	c := &callers{given: map[uint64]bool{}}
	var all sync.WaitGroup
	done := make(chan struct{})
	for _, p := range nodes {
		all.Go(func() {
			web := &http.Client{Timeout: 5 * time.Second}
			for {
				select {
				case <-done:
					return
				default:
				}
				var a api.Next
				resp, err := web.Post(p.URL+"/next", "", http.NoBody)
				if err == nil {
					if resp.StatusCode == http.StatusOK {
						err = json.NewDecoder(resp.Body).Decode(&a)
					}
					_ = resp.Body.Close()
				}
				if err != nil || a.Seq == 0 {
					time.Sleep(5 * time.Millisecond) // do not flood a node that does not lead
					continue
				}
				c.mu.Lock()
				if c.given[a.Seq] {
					c.twice = append(c.twice, a.Seq)
				}
				c.given[a.Seq], c.last = true, max(c.last, a.Seq)
				c.mu.Unlock()
			}
		})
	}
	c.stop = sync.OnceFunc(func() { close(done); all.Wait() })
	t.Cleanup(c.stop)
	return c
}

func (c *callers) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.given)
}

func (c *callers) more(t *testing.T, n int) {
	t.Helper()
	want := c.count() + n
	eventually(t, fmt.Sprintf("%d numbers", want), func() bool { return c.count() >= want })
}

// unhealthy waits until every node reports why it cannot lead, and none works.
func unhealthy(t *testing.T, code string, nodes ...*process) time.Duration {
	t.Helper()
	began := time.Now()
	for _, p := range nodes {
		eventually(t, "a node says "+code, func() bool {
			var problem struct{ Code string }
			resp, _ := ask(t, "GET", p.URL+"/healthz", "", &problem)
			return resp.StatusCode == http.StatusServiceUnavailable && problem.Code == code
		})
		eventually(t, "a node stops its work", func() bool {
			var s api.Status
			ask(t, "GET", p.URL+"/status", "", &s)
			return !s.Working
		})
	}
	return time.Since(began)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func removeDB(t *testing.T, db string) {
	t.Helper()
	for _, name := range []string{db, db + "-wal", db + "-shm"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// The ledger is restored from an older backup, or its file is deleted, under load: the leader
// steps down, every node reports it, nobody leads even if nodes die meanwhile, and no number
// is handed out twice, also not after an operator has accepted the ledger. With TENURE_ROUNDS
// the test is repeated and must react within two seconds.
func TestLedgerLost(t *testing.T) {
	for _, what := range []string{"restored", "deleted"} {
		t.Run(what, func(t *testing.T) {
			for range max(1, long(t, "TENURE_ROUNDS")) {
				ledgerLost(t, what)
			}
		})
	}
}

func ledgerLost(t *testing.T, what string) {
	addr, err := child.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	db := filepath.Join(t.TempDir(), "ledger.db")
	f := &onEtcd{t: t, engine: enginetest.Cluster(t, 1), ledger: startLedger(t, addr[0], db)}
	for i := range 3 {
		f.nodes = append(f.nodes, mustStart(t, f.role(i+1)))
	}
	leaderOf(t, 0, f.nodes...)
	load := startCallers(t, append(f.nodes, f.nodes...)...)
	load.more(t, 50)
	operator, err := client.New(client.Config{URL: f.ledger.URL, Holder: "operator"})
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	if err := operator.Healthy(t.Context()); err != nil {
		t.Fatal(err)
	}
	replaces := operator.Seen().ID
	if err := f.ledger.stop(t); err != nil {
		t.Fatal(err)
	}
	copyFile(t, db, db+".backup")
	f.ledger = startLedger(t, addr[0], db)
	load.more(t, 50)
	leader, _ := leaderOf(t, 0, f.nodes...)

	if what == "restored" {
		f.ledger.Kill()
		removeDB(t, db)
		copyFile(t, db+".backup", db)
		f.ledger = startLedger(t, addr[0], db)
	} else {
		removeDB(t, db)
	}
	took := unhealthy(t, "data_lost", f.nodes...)
	t.Logf("%s: reported by three nodes after %v", what, took)
	if took > 2*time.Second && os.Getenv("TENURE_ROUNDS") != "" {
		t.Errorf("%s: it took %v until all nodes had reported it", what, took)
	}
	before := load.count()
	load.mu.Lock()
	last := load.last
	load.mu.Unlock()
	var left []*process
	for _, p := range f.nodes {
		if p == leader {
			continue
		}
		left = append(left, p)
		eventually(t, "a standby knows the last number", func() bool {
			var s api.Status
			ask(t, "GET", p.URL+"/status", "", &s)
			return s.LastSeq >= last
		})
	}
	leader.Kill()
	f.ledger.Kill()
	f.ledger = startLedger(t, addr[0], db)
	// Longer than the failover after the leader died.
	for end := time.Now().Add(ttl + time.Second); time.Now().Before(end); {
		unhealthy(t, "data_lost", left...)
	}
	if n := load.count() - before; n > 0 {
		t.Errorf("%s: %d numbers were given out by a ledger that lost data", what, n)
	}
	fresh, err := client.New(client.Config{URL: f.ledger.URL, Holder: "operator"})
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	if _, err := fresh.Accept(t.Context(), replaces); err != nil {
		t.Fatal(err)
	}
	load.more(t, 50)
	load.stop()
	if len(load.twice) > 0 {
		t.Errorf("%s: %d numbers were given twice, such as %d", what, len(load.twice), load.twice[0])
	}
	if load.last < last+50 {
		t.Errorf("%s: numbers went on at %d after %d", what, load.last, last)
	}
}

// Two fleets with the same group share a ledger: the second one reports that and does not
// work, cannot change the records of the first, and no number is handed out twice.
func TestLedgerShared(t *testing.T) {
	one := startFleet(t, 2)
	leaderOf(t, 0, one.nodes...)
	load := startCallers(t, one.nodes...)
	load.more(t, 20)
	if resp, body := ask(t, "PUT", one.nodes[0].URL+"/records/k", `"one"`, nil); resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	two := &onEtcd{t: t, engine: enginetest.Cluster(t, 1), ledger: one.ledger}
	for i := range 2 {
		two.nodes = append(two.nodes, mustStart(t, two.role(i+1)))
	}
	intruders := startCallers(t, two.nodes...)
	took := unhealthy(t, api.CodeForeign, two.nodes...)
	t.Logf("reported after %v", took)
	if took > 2*time.Second && os.Getenv("TENURE_ROUNDS") != "" {
		t.Errorf("it took %v until both nodes had reported it", took)
	}
	for _, tt := range []struct{ method, body string }{{"PUT", `"two"`}, {"DELETE", ""}} {
		if resp, body := ask(t, tt.method, two.nodes[0].URL+"/records/k", tt.body, nil); resp.StatusCode == http.StatusOK {
			t.Errorf("%s of a foreign record: %d %s", tt.method, resp.StatusCode, body)
		}
	}
	if resp, body := ask(t, "GET", two.nodes[0].URL+"/records/k", "", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a foreign record is shown: %d %s", resp.StatusCode, body)
	}
	var rec api.Record
	if ask(t, "GET", one.nodes[1].URL+"/records/k", "", &rec); string(rec.Value) != `"one"` {
		t.Errorf("the record is %s", rec.Value)
	}
	load.more(t, 20)
	load.stop()
	intruders.stop()
	if len(load.twice) > 0 || intruders.count() > 0 {
		t.Errorf("%d numbers were given twice, %d by the second fleet", len(load.twice), intruders.count())
	}
}

// While the ledger's disk fails, nodes do not win terms that they cannot use: at most three
// tokens are used, on every backend. TENURE_DISK_SECONDS sets how long the disk fails.
func TestDiskError(t *testing.T) {
	lasts := 4 * time.Second
	if n := long(t, "TENURE_DISK_SECONDS"); n > 0 {
		lasts = time.Duration(n) * time.Second
	}
	for _, backend := range []string{"etcd", node.StoreRaft} {
		t.Run(backend, func(t *testing.T) {
			l := startLedger(t, "127.0.0.1:0", "")
			var nodes []*process
			if backend == "etcd" {
				f := &onEtcd{t: t, engine: enginetest.Cluster(t, 1), ledger: l}
				for i := range 3 {
					r := f.role(i + 1)
					r.Node.SinkPatience = time.Second
					nodes = append(nodes, mustStart(t, r))
				}
			} else {
				addrs, err := child.FreePorts(3)
				if err != nil {
					t.Fatal(err)
				}
				peers := map[string]string{"n1": addrs[0], "n2": addrs[1], "n3": addrs[2]}
				for id := range peers {
					nodes = append(nodes, mustStart(t, role{Node: &nodeRole{
						ID: id, Group: "billing", Listen: "127.0.0.1:0", Store: backend, Peers: peers, DataDir: t.TempDir(), Ledger: l.URL,
						ElectionTimeout: 2 * time.Second, SinkPatience: time.Second, Tick: 100 * time.Millisecond,
					}}))
				}
			}
			_, before := leaderOf(t, 0, nodes...)
			load := startCallers(t, nodes...)
			load.more(t, 10)
			strace := servertest.Command(t, "strace", "-f", "-q", "-o", os.DevNull, "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO", "-p", strconv.Itoa(l.Cmd.Process.Pid))
			said := &child.Tail{}
			strace.Stderr = said
			if err := strace.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { _ = strace.Wait(); close(ended) }()
			began := time.Now()
			eventually(t, "the leader stops its work", func() bool {
				select {
				case <-ended:
					t.Fatalf("strace ended: %s", said)
				default:
				}
				for _, p := range nodes {
					var s api.Status
					if ask(t, "GET", p.URL+"/status", "", &s); s.Working {
						return false
					}
				}
				return true
			})
			time.Sleep(max(0, lasts-time.Since(began))) // the disk fails for at least this long
			if err := strace.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			<-ended
			_, after := leaderOf(t, uint64(before.FenceToken), nodes...)
			load.more(t, 10)
			load.stop()
			if used := after.FenceToken - before.FenceToken; used > 3 {
				t.Errorf("a disk error of %v used %d terms", lasts, used)
			} else {
				t.Logf("a disk error of %v used %d terms", lasts, used)
			}
			if len(load.twice) > 0 {
				t.Errorf("given twice: %v", load.twice)
			}
		})
	}
}

// A new leader raises the ledger's mark before its work begins: a late write of the old
// leader at that moment is refused.
func TestSealedBeforeWork(t *testing.T) {
	l := startLedger(t, "127.0.0.1:0", "")
	n := mustStart(t, role{Node: &nodeRole{ID: "n1", Group: "billing", Listen: "127.0.0.1:0", Store: node.StoreMem, Ledger: l.URL, Hooks: true}})
	_, s := leaderOf(t, 0, n)
	for _, call := range []string{"/pause?at=" + api.MomentSealed, "/resign"} {
		if resp, body := ask(t, "POST", n.URL+call, "", nil); resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s", call, resp.StatusCode, body)
		}
	}
	pid := n.Cmd.Process.Pid
	eventually(t, "the node stops itself before its work", func() bool { return child.Paused(pid) })
	defer n.signal(t, syscall.SIGCONT)
	var r ledgerapi.Resource
	ask(t, "GET", l.URL+"/v1/resources/billing", "", &r)
	if r.Token != s.FenceToken+1 {
		t.Errorf("the mark is %d before the work of token %d begins", r.Token, s.FenceToken+1)
	}
}

// A leader whose writes the ledger refuses steps down, although the ledger is healthy and
// answers reads. It does not win one term after another that it cannot use.
func TestLeaderCannotWrite(t *testing.T) {
	l := startLedger(t, "127.0.0.1:0", "")
	target, err := url.Parse(l.URL)
	if err != nil {
		t.Fatal(err)
	}
	var broken atomic.Bool
	var seals atomic.Int64
	to := httputil.NewSingleHostReverseProxy(target)
	proxy := serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() && strings.HasSuffix(r.URL.Path, "/seal") {
			seals.Add(1)
		}
		if broken.Load() && strings.HasSuffix(r.URL.Path, "/batch") {
			ledgerapi.WriteError(w, ledgerapi.ErrUnavailable)
			return
		}
		to.ServeHTTP(w, r)
	})
	n := mustStart(t, role{Node: &nodeRole{
		ID: "n1", Group: "billing", Listen: "127.0.0.1:0", Store: node.StoreMem, Ledger: proxy, TTL: time.Second, SinkPatience: 500 * time.Millisecond, Tick: 100 * time.Millisecond,
	}})
	_, s := leaderOf(t, 0, n)
	broken.Store(true)
	eventually(t, "it steps down", func() bool {
		var now api.Status
		ask(t, "GET", n.URL+"/status", "", &now)
		return now.Role != api.Leader || now.FenceToken > s.FenceToken
	})
	began := time.Now()
	eventually(t, "it has tried again", func() bool { return seals.Load() >= 3 })
	// The third attempt comes after two pauses; the second pause is twice the first.
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("it used three terms within %v", took)
	}
	broken.Store(false)
	leaderOf(t, uint64(s.FenceToken), n)
}
