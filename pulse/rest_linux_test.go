package pulse

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// A keeper at rest wakes up once a minute at most, and needs 10 KB for each registered process.
// make bench-pulse runs it.
func TestAtRest(t *testing.T) {
	if os.Getenv("TENURE_BENCH_PULSE") == "" {
		t.Skip("make bench-pulse runs it")
	}
	b := newBench(t)
	b.ttl = time.Hour
	pid := b.process().Process.Pid
	register := func(n int) {
		for range n {
			s, instance := b.open("node")
			b.must("stay", s, instance)
		}
	}
	const first, more, windows = 50, 200, 3
	// What the keeper needs, without what its runtime has not freed yet.
	memory := func() int {
		kill(t, pid, syscall.SIGUSR1)
		time.Sleep(2 * time.Second)
		return sum(t, pid, "status", "VmRSS")
	}
	register(first)
	before := memory()
	register(more)
	each := float64(memory()-before) / more
	var woken []int
	for range windows { // the runtime collects garbage every two minutes
		time.Sleep(5 * time.Second)
		const waits = "voluntary_ctxt_switches" // a thread that waits again has woken up
		from := sum(t, pid, "task/*/status", waits)
		time.Sleep(time.Minute)
		woken = append(woken, sum(t, pid, "task/*/status", waits)-from)
	}
	slices.Sort(woken)
	t.Logf("a keeper of %d processes: %.1f KB each (at most 10), %d wake-ups in a minute at rest (at most 1; %v)", first+more, each, woken[windows/2], woken)
	if each > 10 || woken[windows/2] > 1 {
		t.Error("MISSED")
	}
}

// sum adds up a field of the files of a process.
func sum(t *testing.T, pid int, files, field string) (n int) {
	t.Helper()
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/%s", pid, files))
	line := regexp.MustCompile(`(?m)^` + field + `:\s+(\d+)`)
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		for _, m := range line.FindAllSubmatch(text, -1) {
			i, err := strconv.Atoi(string(m[1]))
			if err != nil {
				t.Fatal(err)
			}
			n += i
		}
	}
	if n == 0 {
		t.Fatalf("nothing in %v", paths)
	}
	return n
}
