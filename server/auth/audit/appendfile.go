package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// appendFile is a file of lines that is appended to and rotated when full. One goroutine uses
// it.
type appendFile struct {
	path  string
	most  int64
	files int

	f     *os.File
	size  int64
	torn  bool // the last line may be incomplete
	dirty bool // written and not synced
}

func (a *appendFile) open() error {
	f, err := os.OpenFile(a.path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return err
	}
	a.f, a.size, a.torn = f, info.Size(), false
	if a.size > 0 {
		// A process may have been killed while it wrote.
		last := make([]byte, 1)
		_, err := f.ReadAt(last, a.size-1)
		a.torn = err != nil || last[0] != '\n'
	}
	return nil
}

// append writes whole lines. If the write fails part way, the part is truncated, or ended with
// a line break before the next write.
func (a *appendFile) append(lines []byte) error {
	if err := a.ready(int64(len(lines))); err != nil {
		return err
	}
	if a.torn {
		lines = append([]byte{'\n'}, lines...)
	}
	a.dirty = true
	n, err := a.f.Write(lines)
	if err == nil {
		a.size += int64(n)
		a.torn = false
		return nil
	}
	if n > 0 && a.f.Truncate(a.size) != nil {
		a.size += int64(n)
		a.torn = true
	}
	return err
}

// ready opens the file at the path if necessary, and rotates it if it is full.
func (a *appendFile) ready(more int64) error {
	if a.f != nil {
		// Another program may have rotated the file.
		here, err := os.Stat(a.path)
		if mine, err2 := a.f.Stat(); err != nil || err2 != nil || !os.SameFile(here, mine) {
			_ = a.close()
		} else {
			a.size = mine.Size()
		}
	}
	if a.f == nil {
		if err := a.open(); err != nil {
			return err
		}
	}
	if a.size > 0 && a.size+more > a.most {
		return a.rotate()
	}
	return nil
}

func (a *appendFile) rotate() error {
	if err := a.close(); err != nil {
		return err
	}
	old := func(n int) string { return a.path + "." + strconv.Itoa(n) }
	// The rename replaces the oldest.
	for n := a.files - 1; n >= 1; n-- {
		from := old(n - 1)
		if n == 1 {
			from = a.path
		}
		if err := os.Rename(from, old(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rotate the audit file: %w", err)
		}
	}
	if err := a.open(); err != nil {
		return err
	}
	if dir, err := os.Open(filepath.Dir(a.path)); err == nil {
		_ = dir.Sync() // not every file system supports it
		_ = dir.Close()
	}
	return nil
}

func (a *appendFile) sync() error {
	if a.f == nil || !a.dirty {
		return nil
	}
	if err := a.f.Sync(); err != nil {
		// The kernel may have dropped the pages, and another sync of this file would succeed
		// without them. A newly opened file reports errors correctly.
		f := a.f
		a.f = nil
		return errors.Join(err, f.Close())
	}
	a.dirty = false
	return nil
}

func (a *appendFile) close() error {
	if a.f == nil {
		return nil
	}
	err := a.sync()
	if a.f != nil {
		err = errors.Join(err, a.f.Close())
		a.f = nil
	}
	return err
}
