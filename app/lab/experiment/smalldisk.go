package experiment

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
)

// diskSize is that of the file system that is filled: some megabytes, for the database
// and its log.
const diskSize = 16 << 20

// diskAt is where the trial's small file system is: not in its folder, which could not be
// removed if a lab that was killed had left it mounted.
func diskAt(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(os.TempDir(), fmt.Sprintf("tenure-disk-%x", sum[:8]))
}

// canMount: a small file system of its own needs root, and not every root may. Without,
// the disk is full only for the ledger's system calls.
func canMount() bool {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return false
	}
	at, err := os.MkdirTemp("", "tenure-disk-")
	if err != nil {
		return false
	}
	defer func() { _ = os.Remove(at) }()
	return mountSmall(at) == nil && system("umount", "-l", at) == nil
}

func mountSmall(at string) error {
	return system("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", diskSize), "tenure-lab", at)
}

// smallDisk mounts a small file system for a trial, in place of one that was left.
// Undoing brings what is on it into the trial's folder first.
func smallDisk(dir string) (undo func() error, err error) {
	at := diskAt(dir)
	if err := os.MkdirAll(at, 0o700); err != nil {
		return nil, err
	}
	_ = system("umount", "-l", at) // seldom is there something to unmount
	if err := mountSmall(at); err != nil {
		return nil, fmt.Errorf("no permission for a small file system: %w", err)
	}
	return func() error {
		found, err := filepath.Glob(filepath.Join(at, "ledger.db*"))
		for _, path := range found {
			err = errors.Join(err, copyFile(filepath.Join(dir, filepath.Base(path)), path))
		}
		return errors.Join(err, system("umount", "-l", at), os.RemoveAll(at))
	}, nil
}

func system(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// fillDisk fills the small file system, keeps it full until the caller has seen what it
// wants to see, and frees it again.
func (s *stage) fillDisk(ctx context.Context, until chaos.Until) (f chaos.Fault, err error) {
	f = chaos.Fault{Name: "disk-full", Target: "ledger", Begun: now()}
	path := filepath.Join(filepath.Dir(s.file.Ledger.DB), "ballast")
	ballast, err := os.Create(path)
	if err != nil {
		return f, err
	}
	defer func() {
		err = errors.Join(err, ballast.Close(), os.Remove(path))
		f.Healed = now()
		s.say("the disk has space again")
	}()
	fill := func() (n int64) {
		block := make([]byte, 4096)
		for {
			wrote, err := ballast.Write(block)
			if n += int64(wrote); err != nil {
				return n
			}
		}
	}
	written := fill()
	s.say("the disk is full: %d KB of ballast", written>>10)
	ctx, stop := context.WithCancel(ctx)
	filled := make(chan struct{})
	go func() { // what is freed meanwhile is taken too
		defer close(filled)
		for s.hold(ctx, 5*time.Millisecond) == nil {
			written += fill()
		}
	}()
	err = until(ctx, chaos.Leader{ID: f.Target, URL: s.file.Ledger.URL})
	stop()
	<-filled
	f.Shown = chaos.Measured
	f.Evidence = fmt.Sprintf("%d KB of ballast until no block was left, and the ledger said that it cannot write", written>>10)
	return f, err
}
