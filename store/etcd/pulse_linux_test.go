package etcd_test

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
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/pulse"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
)

// leaderEnv turns the test binary into a process that leads, with a keeper of its own.
const leaderEnv = "TENURE_TEST_ENDPOINTS"

func TestMain(m *testing.M) {
	endpoints := os.Getenv(leaderEnv)
	if endpoints == "" {
		os.Exit(m.Run())
	}
	ctx := context.Background()
	connect := func(ctx context.Context) (store.Store, error) {
		return etcd.Open(ctx, etcd.Config{Endpoints: strings.Split(endpoints, ",")})
	}
	pulse.Main(connect)
	run := leadUntilKilled
	if os.Getenv(shardsEnv) != "" {
		run = runShards
	}
	if err := run(ctx, connect); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func leadUntilKilled(ctx context.Context, connect func(context.Context) (store.Store, error)) error {
	st, err := connect(ctx)
	if err != nil {
		return err
	}
	keeper, err := pulse.Start(nil)
	if err != nil {
		return err
	}
	node, err := lease.New(st, lease.Config{
		Candidate: tenure.Candidate{ID: "killed"}, Scope: store.Scope{"g"}, Timing: lease.Timing{TTL: pulseTTL}, Keeper: keeper, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	elector, err := node.Elector("g")
	if err != nil {
		return err
	}
	fmt.Println("campaigns")
	if _, err := elector.Campaign(ctx); err != nil {
		return err
	}
	if err := keeper.Wait(ctx); err != nil {
		return err
	}
	fmt.Println("leads")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, errors.New("the test has ended"))
}

const pulseTTL = 10 * time.Second

// A killed leader is replaced long before its TTL of ten seconds. TENURE_ROUNDS=100 measures the
// bars, which need an idle machine: 10 ms for half of the rounds, 50 ms for 99 of 100.
func TestKilledLeaderReplaced(t *testing.T) {
	rounds := 3
	if s := os.Getenv("TENURE_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		rounds = n
	}
	endpoints := enginetest.Cluster(t, 1).Endpoints()
	look := open(t, endpoints)
	node, err := lease.New(open(t, endpoints), lease.Config{
		Candidate: tenure.Candidate{ID: "next"}, Scope: store.Scope{"g"}, Timing: lease.Timing{TTL: pulseTTL}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = node.Close(ctx)
	})
	elector, err := node.Elector("g")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rounds+1)*time.Minute)
	defer cancel()
	type won struct {
		term *tenure.Term
		at   time.Time
		err  error
	}
	wins := make(chan won, 1)
	campaign := func() {
		term, err := elector.Campaign(ctx)
		wins <- won{term, time.Now(), err}
	}
	var took []time.Duration
	var term *tenure.Term
	for range rounds {
		leader, said := startLeader(t, endpoints)
		want(t, said, "campaigns")
		if term != nil {
			if err := term.Resign(ctx); err != nil {
				t.Fatal(err)
			}
		}
		want(t, said, "leads")
		go campaign()
		// It must be in line before the leader is killed, or its session is still being opened.
		for {
			all, err := look.Sessions(ctx, store.Scope{"g"}, store.Page{})
			if err != nil {
				t.Fatal(err)
			}
			if len(all) == 2 {
				break
			}
		}
		killed := time.Now()
		if err := syscall.Kill(leader, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		w := <-wins
		if w.err != nil {
			t.Fatal(w.err)
		}
		term, took = w.term, append(took, w.at.Sub(killed))
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	t.Logf("kill to the next term, TTL %v, %d rounds: p50 %v, p99 %v, max %v", pulseTTL, rounds, p50, p99, took[len(took)-1])
	if most := took[len(took)-1]; most > pulseTTL/2 {
		t.Errorf("the longest took %v: that is the TTL, not the proof", most)
	}
	if rounds >= 100 && (p50 > 10*time.Millisecond || p99 > 50*time.Millisecond) {
		t.Errorf("p50 %v, p99 %v: the bars are 10 ms and 50 ms", p50, p99)
	}
}

func startLeader(t *testing.T, endpoints []string) (pid int, said *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), leaderEnv+"="+strings.Join(endpoints, ","))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	waited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(waited) }()
	t.Cleanup(func() { _ = in.Close(); <-waited; _ = r.Close() })
	return cmd.Process.Pid, bufio.NewScanner(r)
}

func want(t *testing.T, said *bufio.Scanner, line string) {
	t.Helper()
	if !said.Scan() || said.Text() != line {
		t.Fatalf("the process said %q, want %q: %v", said.Text(), line, said.Err())
	}
}
