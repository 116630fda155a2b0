package ledger_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/servertest"
)

// Every acknowledged write was synced first: SQLite's log is synced between its write and the
// answer to the caller. The test observes system calls, because the page cache survives a
// killed process.
func TestSyncedBeforeAnswer(t *testing.T) {
	db := filepath.Join(t.TempDir(), "l.db")
	p := startProcess(t, served{DB: db})
	c := p.client()
	trace := filepath.Join(t.TempDir(), "trace")
	strace := servertest.Command(t, "strace", "-f", "-q", "-y", "-s", "16", "-o", trace, "-e", "trace=pwrite64,write,fsync,fdatasync", "-p", strconv.Itoa(p.cmd.Process.Pid))
	var said strings.Builder
	strace.Stderr = &said
	if err := strace.Start(); err != nil {
		t.Fatal(err)
	}
	const writes = 5
	// Attaching takes a moment, so wait for a write that shows up in the trace.
	lines := func() []string {
		data, err := os.ReadFile(trace)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Split(string(data), "\n")
	}
	for deadline := time.Now().Add(30 * time.Second); answers(lines()) == 0; {
		if time.Now().After(deadline) {
			t.Fatalf("strace shows nothing: %s", said.String())
		}
		if _, err := ids(c, t, 1); err != nil {
			t.Fatal(err)
		}
	}
	before := answers(lines())
	for range writes {
		if _, err := ids(c, t, 1); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(30 * time.Second); answers(lines()) < before+writes && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if err := strace.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = strace.Wait()
	seen, log, unsynced := 0, false, false
	for _, line := range lines() {
		switch {
		case strings.Contains(line, "l.db-wal>") && strings.Contains(line, "pwrite64("):
			log, unsynced = true, true
		case strings.Contains(line, "l.db-wal>") && strings.Contains(line, "sync("):
			unsynced = false
		case answer.MatchString(line):
			if !log {
				continue // attaching cut this line in two
			}
			if seen++; unsynced {
				t.Errorf("answer %d was sent before the log was synced: %s", seen, line)
			}
			log = false
		}
	}
	if seen < writes {
		t.Errorf("%d answers were seen, want %d:\n%s", seen, writes, fmt.Sprint(lines()))
	}
}

var answer = regexp.MustCompile(`write\(\d+<(TCP|socket).*"HTTP/1\.1 200`)

func answers(lines []string) (n int) {
	for _, line := range lines {
		if answer.MatchString(line) {
			n++
		}
	}
	return n
}
