package history

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

// ErrFull: the file has reached its size limit. It keeps what was written and has no last
// line, so it is not taken for complete.
var ErrFull = errors.New("the history has reached its size limit; run for a shorter time")

// sizeLimit of one file is about fifty million calls.
const sizeLimit = 8 << 30

// Writer writes one file of a history. It is safe for concurrent use. It buffers: only
// Close says that everything is on the disk. After an error it writes nothing more and
// every call returns that error.
type Writer struct {
	path string

	mu    sync.Mutex
	out   io.WriteCloser // nil: closed
	buf   *bufio.Writer
	left  int64
	lines int
	sum   hash.Hash // of the lines
	err   error
}

// Create creates the file name.ndjson in dir, and dir if it is missing. It does not
// overwrite a file.
func Create(dir, name string) (*Writer, error) {
	path := filepath.Join(dir, name+extension)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, explain(path, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, explain(path, err)
	}
	return NewWriter(path, f, sizeLimit), nil
}

// NewWriter writes to out, at most limit bytes. The path is for error messages.
func NewWriter(path string, out io.WriteCloser, limit int64) *Writer {
	return &Writer{path: path, out: out, buf: bufio.NewWriterSize(out, 256<<10), left: limit, sum: sha256.New()}
}

// Write adds a line.
func (w *Writer) Write(e Event) error {
	line, err := Encode(e)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	if w.left -= int64(len(line)); err == nil && w.left < 0 {
		err = ErrFull
	}
	if err == nil {
		_, err = w.buf.Write(line)
	}
	if err != nil {
		w.err = explain(w.path, err)
		return w.err
	}
	w.lines++
	_, _ = w.sum.Write(line) // a hash returns no error
	return nil
}

// Close writes the last line. If it returns nil, everything is on the disk.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out == nil {
		return w.err
	}
	if w.err == nil {
		_, err := fmt.Fprintf(w.buf, `{"kind":"end","lines":%d,"sha256":"%x"}`+"\n", w.lines, w.sum.Sum(nil))
		err = errors.Join(err, w.buf.Flush())
		if f, ok := w.out.(*os.File); ok && err == nil {
			err = f.Sync()
		}
		if err = errors.Join(err, w.out.Close()); err != nil {
			w.err = explain(w.path, err)
		}
	} else {
		_, _ = w.buf.Flush(), w.out.Close() // the first error is returned
	}
	w.out = nil
	return w.err
}

// Encode returns the line of an event. The kind comes first, so that a reader can skip
// the lines that it does not need.
func Encode(e Event) ([]byte, error) {
	body, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	kind, _ := e.head()
	return fmt.Appendf(nil, "{\"kind\":%q,%s\n", kind, body[1:]), nil
}

func explain(path string, err error) error {
	remedy := ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		remedy = "; no space left: free some, or use another directory"
	case errors.Is(err, os.ErrExist):
		remedy = "; use a new directory for each run"
	}
	return fmt.Errorf("write history %s: %w%s", path, err, remedy)
}
