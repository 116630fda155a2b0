package raft

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A disk that is full is said at once, with the path, and nothing is left behind:
// when there is room, the node opens.
func TestOpenFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	disk := t.TempDir()
	resize := func(flags uintptr, size string) error {
		return syscall.Mount("tmpfs", disk, "tmpfs", flags, "size="+size)
	}
	if err := resize(0, "12k"); err != nil {
		t.Skipf("a small disk cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	dir := filepath.Join(disk, "d")
	f := newFleet(t, func(c *Config) { c.DataDir = dir }, "a")
	full := func(when string) {
		t.Helper()
		n, err := Open(f.config("a"))
		if err == nil {
			f.nodes["a"] = n
			t.Fatalf("%s: it opened", when)
		}
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", when, err)
		}
	}
	full("at its first start")
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := resize(syscall.MS_REMOUNT, "8m"); err != nil {
		t.Fatal(err)
	}
	f.start("a")
	f.win("a")
	f.stop("a")
	if err := os.WriteFile(filepath.Join(disk, "filler"), make([]byte, 5<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	full("later")
	if err := os.Remove(filepath.Join(disk, "filler")); err != nil {
		t.Fatal(err)
	}
	f.start("a")
}
