package history

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/tenurehq/tenure/clock"
)

// Call is one call that was answered: the numbers First to Last, under Token. Start is
// when the try that was answered was sent, End when the answer had been read.
type Call struct {
	Start clock.Instant `json:"start"`
	End   clock.Instant `json:"end"`
	Token uint64        `json:"token"`
	First uint64        `json:"first"`
	Last  uint64        `json:"last"`
}

// magic begins a file. Blocks follow: a length of four bytes, then calls as varints
// (start after that of the call before it in the block, how long, token, first after
// the last of the call before, how many).
const magic = "tenure-history-1\n"

const blockSize = 64 << 10

// Writer writes a history. A file that ends in .ndjson has one JSON object a line,
// every other the compact form, about 10 bytes a call.
type Writer struct {
	ndjson bool
	path   string
	f      *os.File

	mu  sync.Mutex
	err error // the first; what follows it is lost
}

// Create makes the file, or empties it.
func Create(path string) (*Writer, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	w := &Writer{f: f, path: path, ndjson: strings.HasSuffix(path, ".ndjson")}
	if !w.ndjson {
		if _, err := f.WriteString(magic); err != nil {
			return nil, errors.Join(fmt.Errorf("history: %w", err), f.Close())
		}
	}
	return w, nil
}

// Close ends the file. Recorders must have been closed.
func (w *Writer) Close() error {
	err := w.f.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.err, err)
}

func (w *Writer) write(p []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		if _, err := w.f.Write(p); err != nil {
			w.err = fmt.Errorf("history %s is not whole: %w", w.path, err)
		}
	}
	return w.err
}

// Recorder returns a part of the writer for one goroutine: it gathers calls before it
// writes them.
func (w *Writer) Recorder() *Recorder { return &Recorder{w: w, buf: make([]byte, 4, blockSize)} }

// Recorder is used by one goroutine. A nil one has nothing to close.
type Recorder struct {
	w    *Writer
	buf  []byte // four bytes for the length, then calls
	last Call
}

const callSize = 5 * binary.MaxVarintLen64

// Add adds a call. An error means that the history is not whole.
func (r *Recorder) Add(c Call) error {
	if r.w.ndjson {
		line, err := json.Marshal(c)
		if err != nil {
			return err
		}
		r.buf = append(append(r.buf, line...), '\n')
	} else {
		r.buf = binary.AppendVarint(r.buf, int64(c.Start-r.last.Start))
		r.buf = binary.AppendUvarint(r.buf, uint64(c.End-c.Start))
		r.buf = binary.AppendUvarint(r.buf, c.Token)
		r.buf = binary.AppendVarint(r.buf, int64(c.First-r.last.Last))
		r.buf = binary.AppendUvarint(r.buf, c.Last-c.First)
		r.last = c
	}
	if len(r.buf) < blockSize-2*callSize-128 {
		return nil
	}
	return r.flush()
}

func (r *Recorder) flush() error {
	if len(r.buf) == 4 {
		return nil
	}
	out := r.buf
	if r.w.ndjson {
		out = out[4:]
	} else {
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	}
	r.buf, r.last = r.buf[:4], Call{}
	return r.w.write(out)
}

// Close writes what was gathered.
func (r *Recorder) Close() error {
	if r == nil {
		return nil
	}
	return r.flush()
}

// Read reads a history. One whose end is missing, because its writer was killed, is an
// error that wraps io.ErrUnexpectedEOF; the calls before are returned.
func Read(path string) ([]Call, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewReaderSize(f, 1<<20)
	begin, err := in.Peek(len(magic))
	if err == nil && string(begin) == magic {
		_, _ = in.Discard(len(magic)) // it was peeked
		calls, err := blocks(in)
		if err != nil {
			err = fmt.Errorf("history %s: %w", path, err)
		}
		return calls, err
	}
	if len(begin) > 0 && begin[0] != '{' {
		return nil, fmt.Errorf("history: %s is none", path)
	}
	var calls []Call
	for d := json.NewDecoder(in); ; {
		var c Call
		switch err := d.Decode(&c); {
		case errors.Is(err, io.EOF):
			return calls, nil
		case err != nil:
			return calls, fmt.Errorf("history %s, call %d: %w", path, len(calls)+1, err)
		}
		calls = append(calls, c)
	}
}

func blocks(in io.Reader) ([]Call, error) {
	var calls []Call
	var head [4]byte
	for {
		switch _, err := io.ReadFull(in, head[:]); {
		case errors.Is(err, io.EOF):
			return calls, nil
		case err != nil:
			return calls, err
		}
		size := binary.BigEndian.Uint32(head[:])
		if size > blockSize {
			return calls, errors.New("a block is too long: this is no history")
		}
		block := make([]byte, size)
		if _, err := io.ReadFull(in, block); err != nil {
			return calls, io.ErrUnexpectedEOF
		}
		var last Call
		for r := bytes.NewReader(block); r.Len() > 0; {
			c, err := next(r, last)
			if err != nil {
				return calls, err
			}
			calls, last = append(calls, c), c
		}
	}
}

func next(r io.ByteReader, last Call) (c Call, err error) {
	signed := func() int64 {
		v, verr := binary.ReadVarint(r)
		err = errors.Join(err, verr)
		return v
	}
	unsigned := func() uint64 {
		v, verr := binary.ReadUvarint(r)
		err = errors.Join(err, verr)
		return v
	}
	c.Start = last.Start + clock.Instant(signed())
	c.End = c.Start + clock.Instant(unsigned())
	c.Token = unsigned()
	c.First = last.Last + uint64(signed())
	c.Last = c.First + unsigned()
	return c, err
}
