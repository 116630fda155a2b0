//go:build linux

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/server/service"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
)

// serviceRounds is the number of rounds; without it the benchmark is skipped.
func serviceRounds(t *testing.T) int {
	t.Helper()
	rounds, err := strconv.Atoi(os.Getenv("TENURE_BENCH_SERVICE"))
	if err != nil {
		t.Skip("a benchmark: make bench-service")
	}
	return rounds
}

// sized returns a size, which the environment may change.
func sized(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// serveProgram builds the program once. TENURE_BENCH_PROGRAM names another program, such as one
// with profiling.
var serveProgram = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("TENURE_BENCH_PROGRAM"); path != "" {
		return filepath.Dir(path), nil
	}
	bin, err := child.CacheDir("service")
	if err != nil {
		return "", err
	}
	return bin, build(bin+"/", nil, "server/cmd/tenure")
})

// serving is a process of `tenure serve` with its own engine.
type serving struct {
	*rig
	*program
}

func newServing(t *testing.T, members int) *serving {
	t.Helper()
	moreFiles(t)
	bin, err := serveProgram()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t: t, bin: bin, endpoints: enginetest.Cluster(t, members).Endpoints(),
		http: &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	t.Cleanup(r.http.CloseIdleConnections)
	hosts := strings.ReplaceAll(strings.Join(r.endpoints, ","), "http://", "")
	p := r.run("tenure", "serve", "--listen", "127.0.0.1:0", "--store", "etcd://"+hosts)
	return &serving{r, p}
}

// moreFiles raises the soft limit of open files, for this process and its children.
func moreFiles(t *testing.T) {
	t.Helper()
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	l.Cur = l.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
}

func (s *serving) store() *etcd.Store {
	s.t.Helper()
	store, err := etcd.Open(s.t.Context(), etcd.Config{Endpoints: s.endpoints})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(store.Close)
	return store
}

// post calls the service; the call must succeed.
func (s *serving) post(path string, in, out any) {
	s.t.Helper()
	if _, err := s.call(s.t.Context(), http.MethodPost, s.URL+path, in, out); err != nil {
		s.t.Fatal(err)
	}
}

// took is how long f takes.
func took(f func()) time.Duration {
	begin := time.Now()
	f()
	return time.Since(begin)
}

// A campaign and a renewal through the service, on an engine of three, take little longer than
// with the Store itself. They are measured alternately.
func TestServiceCalls(t *testing.T) {
	rounds := 10 * serviceRounds(t)
	s := newServing(t, 3)
	st, ctx := s.store(), t.Context()
	const ttl = time.Minute
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var direct, through struct{ campaigns, beats series }
	var session store.Session
	var mine service.Leading
	for i := range rounds + 10 {
		group := fmt.Sprintf("direct-%d", i)
		d := took(func() {
			v, err := st.Read(ctx, group)
			must(err)
			session, err = st.Open(ctx, tenure.Candidate{ID: "bench"}, ttl, store.OpenOptions{Scope: store.Scope{group}})
			must(err)
			_, err = st.Acquire(ctx, session.ID, v.Record)
			must(err)
		})
		group = fmt.Sprintf("through-%d", i)
		h := took(func() {
			s.post("/groups/"+group+"/campaign", service.CampaignRequest{NodeID: "bench", TTLMS: ttl.Milliseconds()}, &mine)
		})
		if i >= 10 {
			direct.campaigns, through.campaigns = append(direct.campaigns, d), append(through.campaigns, h)
		}
	}
	renew, err := json.Marshal(service.RenewRequest{NodeID: "bench", Term: mine.Term, Handle: mine.Handle})
	must(err)
	w := dialWire(t, s.URL).posts("/groups/"+mine.Group+"/renew", renew)
	defer func() { _ = w.conn.Close() }()
	for range 2 * rounds {
		direct.beats = append(direct.beats, took(func() {
			_, err := st.KeepAlive(ctx, session.ID)
			must(err)
		}))
		through.beats = append(through.beats, took(func() { must(w.call()) }))
	}
	d, h := direct.campaigns.at(0.5), through.campaigns.at(0.5)
	ratio := float64(h) / float64(d)
	verdict(t, ratio <= 1.1, fmt.Sprintf("service: %d campaigns, p50", rounds), fmt.Sprintf("%.2f ms, %.2f × of %.2f ms by the Store", millis(h), ratio, millis(d)), "<= 1.1 ×")
	d, h = direct.beats.at(0.5), through.beats.at(0.5)
	verdict(t, h-d <= 500*time.Microsecond, fmt.Sprintf("service: %d renewals, p50", 2*rounds), fmt.Sprintf("%.2f ms, %+.2f ms to %.2f ms by the Store", millis(h), millis(h-d), millis(d)), "<= + 0.5 ms")
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// callers is the number of concurrent callers.
const callers = 64

// hammered is the number of calls per second if all callers call repeatedly.
func hammered(t *testing.T, during time.Duration, caller func() (call func() error, end func())) float64 {
	t.Helper()
	var calls atomic.Int64
	var all sync.WaitGroup
	calling, ends := make([]func() error, callers), make([]func(), callers)
	defer func() {
		for _, end := range ends {
			if end != nil {
				end()
			}
		}
	}()
	for i := range callers {
		call, end := caller()
		ends[i] = end
		if err := call(); err != nil { // connects
			t.Fatal(err)
		}
		calling[i] = call
	}
	begin := time.Now()
	for _, call := range calling {
		all.Go(func() {
			for time.Since(begin) < during {
				if err := call(); err != nil {
					t.Error(err)
					return
				}
				calls.Add(1)
			}
		})
	}
	all.Wait()
	return float64(calls.Load()) / time.Since(begin).Seconds()
}

// Reads of the leader of one group, by 64 callers: linearizable reads compared with reads of the
// engine, and stale reads compared with a bare handler that answers the same bytes.
func TestServiceReads(t *testing.T) {
	turns := 3
	during := min(4*time.Second, time.Duration(serviceRounds(t))*200*time.Millisecond)
	s := newServing(t, 3)
	s.post("/groups/read/campaign", service.CampaignRequest{NodeID: "bench", TTLMS: 300_000, Address: "127.0.0.1:1234"}, nil)
	engine, err := clientv3.New(clientv3.Config{Endpoints: s.endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	url := s.URL + "/groups/read/leader"
	ask(t, url) // so that the cache is not older than the campaign
	sample := ask(t, url+"?stale=2s")
	if _, err := engine.Put(t.Context(), "bench", string(sample.Body)); err != nil {
		t.Fatal(err)
	}
	bare := sample.start(t)
	over := func(url string) func() (func() error, func()) {
		return func() (func() error, func()) {
			w := dialWire(t, url)
			return w.call, func() { _ = w.conn.Close() }
		}
	}
	own := func() (func() error, func()) {
		return func() error {
			_, err := engine.Get(t.Context(), "bench")
			return err
		}, func() {}
	}
	var fresh, stale struct{ ratios, base []float64 }
	var ours, bares []float64 // CPU time of the server per call, on which other programs have little influence
	for range turns {
		e := hammered(t, during, own)
		fresh.base = append(fresh.base, e)
		fresh.ratios = append(fresh.ratios, hammered(t, during, over(url))/e)
		spent := cpu(t, bare.proc.Cmd.Process.Pid)
		b := hammered(t, during, over(bare.url))
		bares = append(bares, (cpu(t, bare.proc.Cmd.Process.Pid)-spent).Seconds()/during.Seconds()/b*1e6)
		stale.base = append(stale.base, b)
		spent = cpu(t, s.PID)
		o := hammered(t, during, over(url+"?stale=2s"))
		ours = append(ours, (cpu(t, s.PID)-spent).Seconds()/during.Seconds()/o*1e6)
		stale.ratios = append(stale.ratios, o/b)
	}
	progress("CPU time of a stale read: %.1f µs, of a bare answer: %.1f µs", median(ours), median(bares))
	verdict(t, median(fresh.ratios) >= 0.5, "service: linearizable leader reads, median of 3", fmt.Sprintf("%.2f × of the engine's %.0f a second", median(fresh.ratios), median(fresh.base)), ">= 0.5 ×")
	verdict(t, median(stale.ratios) >= 0.7, "service: stale leader reads, median of 3", fmt.Sprintf("%.2f × of a bare handler's %.0f a second", median(stale.ratios), median(stale.base)), ">= 0.7 ×")
}

// cpu is the CPU time that a process has used.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The name in parentheses may have spaces; utime and stime are fields 12 and 13 after it.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	const tick = 10 * time.Millisecond // of every Linux that Go runs on
	return time.Duration(ticks) * tick
}

func median(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }

// ask returns a bare handler that answers what url answers.
func ask(t *testing.T, url string) task {
	t.Helper()
	var body bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := body.ReadFrom(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s: %v", resp.StatusCode, body.String(), err)
	}
	k := task{Kind: bareHandler, Headers: map[string]string{}, Body: body.Bytes()}
	for name := range resp.Header {
		if name != "Date" && name != "Content-Length" {
			k.Headers[name] = resp.Header.Get(name)
		}
	}
	return k
}
