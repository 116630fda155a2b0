package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The cost of exec, as built for users: the command starts at most 30 ms after the election
// (95th percentile), and wrapper and keeper together use at most 60 MB. TENURE_BENCH_EXEC
// sets the number of rounds, on an idle machine.
func TestExecCost(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("TENURE_BENCH_EXEC"))
	if rounds < 1 {
		t.Skip("set TENURE_BENCH_EXEC to a number of rounds")
	}
	program := filepath.Join(t.TempDir(), "tenure")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	e := newExecRig(t)
	store := etcdURL(e.engine.Members[0].Addr())
	var starts, sizes []float64
	for n := range rounds {
		start, size := execCost(t, program, store, fmt.Sprintf("cost-%d", n))
		starts, sizes = append(starts, start), append(sizes, size)
	}
	slices.Sort(starts)
	slices.Sort(sizes)
	line := func(name string, value, bar float64, unit string) {
		verdict := "ok"
		if value > bar {
			verdict = "short"
			t.Fail()
		}
		t.Logf("%s: %.1f %s, bar %.0f %s, %s", name, value, unit, bar, unit, verdict)
	}
	line(fmt.Sprintf("exec: from the win to the command, p95 of %d (median %.1f ms)", rounds, starts[len(starts)/2]), starts[(len(starts)*95+99)/100-1], 30, "ms")
	line("exec: wrapper and keeper together, PSS, largest", sizes[len(sizes)-1], 60, "MB")
}

// execCost runs exec once. The fencing file is first written when the term begins. The
// command, a bash, prints its start time and the time of that file.
func execCost(t *testing.T, program, store, group string) (startMS, sizeMB float64) {
	t.Helper()
	dir := t.TempDir()
	w := exec.Command(program, "exec", "-q", "--ttl=8s", "--store="+store, group, "--",
		"bash", "-c", `echo $EPOCHREALTIME $(stat -c %.9Y "$TENURE_FENCING_FILE") > "$0/at" && mv "$0/at" "$0/said" && read`, dir)
	stdin, err := w.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Wait() }()
	defer func() { _ = stdin.Close() }()
	var text []byte
	until(t, "the command has begun", func() bool {
		text, err = os.ReadFile(filepath.Join(dir, "said"))
		return err == nil
	})
	var began, won float64
	if _, err := fmt.Sscan(string(text), &began, &won); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	for _, pid := range append(childrenOf(w.Process.Pid)[:1], w.Process.Pid) {
		sizeMB += pss(t, pid)
	}
	return 1000 * (began - won), sizeMB
}

// pss is the proportional share of memory of a process, in MB.
func pss(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		if rest, ok := strings.CutPrefix(string(line), "Pss:"); ok {
			kb, _ := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kb / 1000
		}
	}
	t.Fatalf("process %d has no PSS", pid)
	return 0
}
