package engines_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/pulse"
	"github.com/tenurehq/tenure/server/engines"
	"github.com/tenurehq/tenure/store"
)

// pulseEnv turns the test binary into a process that leads: etcd's own election, or the groups on
// the store of a URL, with a keeper.
const (
	pulseEnv = "TENURE_PULSE_STORE"
	stockEnv = "TENURE_PULSE_STOCK"
	countEnv = "TENURE_PULSE_GROUPS"
	pulseTTL = 10 * time.Second
)

func TestMain(m *testing.M) {
	url, stock := os.Getenv(pulseEnv), os.Getenv(stockEnv)
	if url == "" && stock == "" {
		os.Exit(m.Run())
	}
	pulse.Main(func(ctx context.Context) (store.Store, error) { return engines.Open(ctx, url, engines.Options{}) })
	err := error(nil)
	if stock != "" {
		err = leadStock(context.Background(), stock)
	} else {
		err = leadAll(context.Background(), url)
	}
	fmt.Println("error:", err)
	os.Exit(1)
}

func leadStock(ctx context.Context, endpoints string) error {
	e, shut, err := stockElection(endpoints)
	if err != nil {
		return err
	}
	defer shut()
	if err := e.Campaign(ctx, "killed"); err != nil {
		return err
	}
	fmt.Println("leads")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func stockElection(endpoints string) (*concurrency.Election, func(), error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(endpoints, ",")})
	if err != nil {
		return nil, nil, err
	}
	s, err := concurrency.NewSession(c, concurrency.WithTTL(int(pulseTTL/time.Second)))
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return concurrency.NewElection(s, "/stock"), func() { _, _ = s.Close(), c.Close() }, nil
}

// leadAll leads every group and says so. Told to, it resigns from the first.
func leadAll(ctx context.Context, url string) error {
	st, err := engines.Open(ctx, url, engines.Options{})
	if err != nil {
		return err
	}
	keeper, err := pulse.Start(nil)
	if err != nil {
		return err
	}
	groups, err := strconv.Atoi(os.Getenv(countEnv))
	if err != nil {
		return err
	}
	node, err := newNode(st, "first", groups, keeper)
	if err != nil {
		return err
	}
	terms, err := campaignAll(ctx, node, groups)
	if err == nil {
		err = keeper.Wait(ctx)
	}
	if err != nil {
		return err
	}
	fmt.Println("leads")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if err := terms[0].Resign(ctx); err != nil {
			return err
		}
		fmt.Println("resigned")
	}
	return in.Err()
}

func newNode(st store.Store, id string, groups int, keeper lease.Keeper) (*lease.Node, error) {
	scope := store.Scope{"g-*"}
	if groups == 1 {
		scope = store.Scope{"g-0"} // so that a resignation names its successor
	}
	cfg := lease.Config{Candidate: tenure.Candidate{ID: id}, Scope: scope, Timing: lease.Timing{TTL: pulseTTL}, Log: slog.New(slog.DiscardHandler)}
	if keeper != nil {
		cfg.Keeper = keeper
	}
	return lease.New(st, cfg)
}

// campaignAll returns when the node leads all groups.
func campaignAll(ctx context.Context, node *lease.Node, groups int) ([]*tenure.Term, error) {
	terms, errs := make([]*tenure.Term, groups), make([]error, groups)
	var all sync.WaitGroup
	for i := range groups {
		all.Go(func() {
			e, err := node.Elector("g-" + strconv.Itoa(i))
			if err == nil {
				terms[i], err = e.Campaign(ctx)
			}
			errs[i] = err
		})
	}
	all.Wait()
	return terms, errors.Join(errs...)
}

// start starts a process that leads, and waits until it does. end kills it, or makes it resign;
// stop waits until it is gone.
func start(t *testing.T, env ...string) (end func(kill bool), stop func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { _, _ = in.Close(), cmd.Process.Kill(); _ = cmd.Wait() })
	t.Cleanup(stop)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "leads\n" {
		t.Fatalf("the process said %q: %v", line, err)
	}
	return func(kill bool) {
		if kill {
			err = syscall.Kill(cmd.Process.Pid, syscall.SIGKILL)
		} else {
			_, err = in.Write([]byte("resign\n"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}, stop
}

// next measures how long after the end of a leader another process leads all groups.
func next(t *testing.T, url string, groups, rounds int, kill bool) (took []time.Duration) {
	t.Helper()
	st, err := engines.Open(t.Context(), url, engines.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rounds+2)*time.Minute)
	defer cancel()
	node, err := newNode(st, "next", groups, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cctx, cancel := context.WithTimeout(ctx, time.Second) // terms of many groups are not resigned
		defer cancel()
		_ = node.Close(cctx)
	}()
	for range rounds {
		end, stop := start(t, pulseEnv+"="+url, countEnv+"="+strconv.Itoa(groups))
		began := make(chan time.Time, 1)
		done := make(chan error, 1)
		var terms []*tenure.Term
		var won time.Time
		go func() {
			began <- time.Now()
			var err error
			terms, err = campaignAll(ctx, node, groups)
			won = time.Now()
			done <- err
		}()
		<-began
		// The first campaign opens the session and the watch of this node.
		select {
		case <-time.After(time.Second):
		case err := <-done:
			t.Fatalf("it leads before the end of the leader: %v", err)
		}
		killed := time.Now()
		end(kill)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		stop()
		took = append(took, won.Sub(killed))
		for _, term := range terms {
			if groups > 1 {
				break // one round
			}
			if err := term.Resign(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	slices.Sort(took)
	return took
}

// nextStock measures the same for etcd's own election.
func nextStock(t *testing.T, endpoints string, rounds int) (took []time.Duration) {
	t.Helper()
	for range rounds {
		end, stop := start(t, stockEnv+"="+endpoints)
		e, shut, err := stockElection(endpoints)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- e.Campaign(t.Context(), "next") }()
		time.Sleep(time.Second)
		killed := time.Now()
		end(true)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(killed))
		stop()
		shut()
	}
	slices.Sort(took)
	return took
}

func p(took []time.Duration, percent int) time.Duration { return took[len(took)*percent/100] }

// bar prints a figure and its bar, and fails if it is missed.
func bar[T time.Duration | float64](t *testing.T, what string, got, want T, atLeast bool) {
	t.Helper()
	missed, than := got > want, "at most"
	if atLeast {
		missed, than = got < want, "at least"
	}
	show := func(v T) string {
		if d, is := any(v).(time.Duration); is {
			return d.Round(100 * time.Microsecond).String()
		}
		return fmt.Sprintf("%.2f", float64(v))
	}
	t.Logf("%-70s %10s, %s %s", what, show(got), than, show(want))
	if missed {
		t.Errorf("MISSED: %s: %s, %s %s", what, show(got), than, show(want))
	}
}

// After kill -9 another process leads at once, on every engine. make bench-pulse runs it with
// TENURE_BENCH_PULSE rounds; the bars need a machine that does nothing else.
func TestPulseBench(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("TENURE_BENCH_PULSE"))
	if err != nil {
		t.Skip("make bench-pulse runs it")
	}
	const slack = 10 * time.Millisecond
	etcd := func(t *testing.T, members int) string {
		return strings.Join(enginetest.Cluster(t, members).Endpoints(), ",")
	}
	address := func(endpoints string) string { return "etcd://" + strings.ReplaceAll(endpoints, "http://", "") }
	t.Run("etcd", func(t *testing.T) {
		endpoints := etcd(t, 1)
		took := next(t, address(endpoints), 1, rounds, true)
		stock := nextStock(t, endpoints, max(3, rounds/20))
		bar(t, fmt.Sprintf("kill -9 to the next term, one member, %d rounds, p50", rounds), p(took, 50), 10*time.Millisecond, false)
		bar(t, "the same, p99", p(took, 99), 50*time.Millisecond, false)
		bar(t, fmt.Sprintf("times faster than concurrency.Election (p50 %v, %d rounds)", p(stock, 50), len(stock)), float64(p(stock, 50))/float64(p(took, 50)), 200.0, true)
	})
	t.Run("three members", func(t *testing.T) {
		url := address(etcd(t, 3))
		resigned := next(t, url, 1, min(rounds, 50), false)
		took := next(t, url, 1, min(rounds, 50), true)
		bar(t, "kill -9, three members, p50 / p50 of a resignation", float64(p(took, 50))/float64(p(resigned, 50)), 1.5, false)
	})
	t.Run("many groups", func(t *testing.T) {
		groups := 10_000
		if rounds < 20 {
			groups = 500 // a trial of the test
		}
		took := next(t, address(etcd(t, 1)), groups, 1, true)
		bar(t, fmt.Sprintf("all of %d groups of a killed process led again", groups), took[0], time.Second, false)
	})
	for _, name := range servertest.Engines() {
		t.Run(name, func(t *testing.T) {
			behind := ""
			if servertest.NeedsEtcd(name) {
				behind = etcd(t, 1)
			}
			e, err := servertest.Start(name, behind)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Stop()
			url, err := e.Store(e.Addr(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			resigned := next(t, url, 1, min(rounds, 20), false)
			took := next(t, url, 1, min(rounds, 20), true)
			bar(t, fmt.Sprintf("kill -9 on %s, p50, beside a resignation (%v) + 10 ms", name, p(resigned, 50)), p(took, 50), p(resigned, 50)+slack, false)
		})
	}
}
