package fleet_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/app/fleet"
)

// The bar of the sequencer: POST /next, durable and fenced, against a bare handler that
// answers a constant and against a fleet that commits each call alone. The callers are
// as cheap as callers can be, on the same cores.
func TestNextBar(t *testing.T) {
	if os.Getenv("TENURE_BENCH") == "" {
		t.Skip("a benchmark: TENURE_BENCH=1")
	}
	during := 5 * time.Second
	if d, err := time.ParseDuration(os.Getenv("TENURE_BENCH_FOR")); err == nil {
		during = d
	}
	node := func(batch int) *process {
		l := startLedger(t, "127.0.0.1:0", "")
		p := mustStart(t, role{Node: &nodeRole{ID: "n", Group: "bench", Listen: "127.0.0.1:0", Backend: fleet.BackendMem, Ledger: l.URL, Batch: batch}})
		leaderOf(t, 0, p)
		return p
	}
	bare, shared, alone := mustStart(t, role{Bare: true}), node(0), node(1)
	const connections, rounds = 256, 3
	measure := func(p *process, path string) float64 {
		_ = hammer(t, p.URL, path, connections, during/5)
		return hammer(t, p.URL, path, connections, during)
	}
	var b, s, a, h []float64
	for range rounds {
		b = append(b, measure(bare, "/next"))
		s = append(s, measure(shared, "/next"))
	}
	a = append(a, measure(alone, "/next"))
	h = append(h, measure(shared, "/next?n=100"))
	best := func(of []float64) float64 {
		most := 0.0
		for _, v := range of {
			most = max(most, v)
		}
		return most
	}
	fmt.Printf("bare handler %.0f/s; /next %.0f/s = %.2f × (bar 0.5, aim 0.8); each call alone %.0f/s: %.1f × (bar 10); n=100 %.0f ids/s (bar 500000)\n",
		best(b), best(s), best(s)/best(b), best(a), best(s)/best(a), 100*best(h))
	_, metrics := ask(t, "GET", shared.URL+"/metrics", "", nil)
	for line := range strings.SplitSeq(string(metrics), "\n") {
		if strings.HasPrefix(line, "tenure_fleet_batch_callers_sum") || strings.HasPrefix(line, "tenure_fleet_batch_callers_count") {
			fmt.Println(line)
		}
	}
}

// hammer calls on kept connections for a while and returns the calls per second that
// were answered with 200.
func hammer(t *testing.T, url, path string, connections int, during time.Duration) float64 {
	t.Helper()
	host := strings.TrimPrefix(url, "http://")
	request := []byte("POST " + path + " HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 0\r\n\r\n")
	var calls atomic.Int64
	var callers sync.WaitGroup
	deadline := time.Now().Add(during)
	for range connections {
		callers.Go(func() {
			conn, err := net.Dial("tcp", host)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(deadline.Add(10 * time.Second))
			in := bufio.NewReader(conn)
			n := int64(0)
			for time.Now().Before(deadline) {
				if _, err := conn.Write(request); err != nil {
					t.Error(err)
					return
				}
				if err := answer(in); err != nil {
					t.Error(err)
					return
				}
				n++
			}
			calls.Add(n)
		})
	}
	callers.Wait()
	return float64(calls.Load()) / during.Seconds()
}

// answer reads one answer: status line, Content-Length, body.
func answer(in *bufio.Reader) error {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return err
	}
	ok := bytes.HasPrefix(line, []byte("HTTP/1.1 200"))
	length := 0
	for {
		if line, err = in.ReadSlice('\n'); err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if v, found := bytes.CutPrefix(line, []byte("Content-Length: ")); found {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(v))); err != nil {
				return err
			}
		}
	}
	body, err := in.Peek(length)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("not answered with 200: %s", body)
	}
	_, err = in.Discard(length)
	return err
}
