package raft

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) contains(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), part)
}

// A copy of a data directory that runs beside the original is reported. A restart is not.
func TestClonedDirectory(t *testing.T) {
	const report = "two processes run under one node id"
	var said lines
	f := newFleet(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&said, nil)) }, "a", "b", "c")
	f.start("a", "b", "c")
	f.win("c")
	f.stop("c")
	clone := f.config("c")
	clone.DataDir, clone.Listen = filepath.Join(t.TempDir(), "clone"), "127.0.0.1:0"
	if err := os.CopyFS(clone.DataDir, os.DirFS(f.config("c").DataDir)); err != nil {
		t.Fatal(err)
	}
	f.start("c")
	f.win("c")
	if said.contains(report) {
		t.Fatal("a restart was reported")
	}
	n, err := Open(clone)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := within(patience)
		defer cancel()
		_ = n.Close(ctx)
	})
	eventually(t, "the clone is reported", func() bool { return said.contains(report) })
}
