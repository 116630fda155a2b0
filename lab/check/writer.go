package check

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// ErrFull: the history has reached the size that it was given. What was written is
// there, what was refused is not, and the file says so by having no end.
var ErrFull = errors.New("check: the history has reached its limit: allow a larger one, or run for a shorter time")

// DefaultLimit is the size of one file of a history: about fifty million calls.
const DefaultLimit = 8 << 30

// Writer writes one file of a history. It is safe for concurrent use, and buffered:
// only Close says that everything is on the disk. After an error nothing more is
// written and every call returns it.
type Writer struct {
	path string

	mu    sync.Mutex
	out   io.WriteCloser
	buf   *bufio.Writer
	left  int64
	lines int64
	sum   hash.Hash // of the lines
	err   error
}

// Create makes the file name.ndjson in dir, which is made if it is missing. A file
// that is there already is not touched. A limit of 0 is DefaultLimit.
func Create(dir, name string, limit int64) (*Writer, error) {
	path := filepath.Join(dir, name+extension)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, explain(path, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, explain(path, err)
	}
	return newWriter(path, f, limit), nil
}

func newWriter(path string, out io.WriteCloser, limit int64) *Writer {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &Writer{path: path, out: out, buf: bufio.NewWriterSize(out, 256<<10), left: limit, sum: sha256.New()}
}

// Write adds a line.
func (w *Writer) Write(e Event) error {
	line, err := encode(e)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	if err == nil && int64(len(line)) > w.left {
		err = ErrFull
	}
	if err == nil {
		_, err = w.buf.Write(line)
	}
	if err != nil {
		w.err = explain(w.path, err)
		return w.err
	}
	w.left -= int64(len(line))
	w.lines++
	_, _ = w.sum.Write(line) // it cannot fail
	return nil
}

// Close ends the file and returns the first error there was: without one everything
// that was written is on the disk.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out == nil {
		return w.err
	}
	end := func() error {
		if _, err := fmt.Fprintf(w.buf, `{"kind":"end","lines":%d,"sha256":"%x"}`+"\n", w.lines, w.sum.Sum(nil)); err != nil {
			return err
		}
		if err := w.buf.Flush(); err != nil {
			return err
		}
		if f, ok := w.out.(*os.File); ok {
			return f.Sync()
		}
		return nil
	}
	err := w.err
	if err == nil {
		err = end()
	} else if errors.Is(err, ErrFull) {
		_ = w.buf.Flush()
	}
	if closed := w.out.Close(); err == nil {
		err = closed
	}
	w.out = nil
	if err != nil && w.err == nil {
		w.err = explain(w.path, err)
	}
	return w.err
}

// encode writes the kind first, so that a reader can pass over what it does not need.
func encode(e Event) ([]byte, error) {
	body, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	line := make([]byte, 0, len(body)+24)
	line = append(line, `{"kind":"`...)
	line = append(line, e.kind()...)
	line = append(line, '"', ',')
	line = append(line, body[1:]...)
	return append(line, '\n'), nil
}

func explain(path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("check: no room left for the history %s, which is incomplete now: free some, or give it another directory: %w", path, err)
	case errors.Is(err, os.ErrExist):
		return fmt.Errorf("check: the history %s is there already: give the run a directory of its own: %w", path, err)
	}
	return fmt.Errorf("check: the history %s cannot be written: %w", path, err)
}
