package history

import (
	"bufio"
	"bytes"
	"container/heap"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
)

const (
	extension = ".ndjson"
	maxLine   = 1 << 20
	maxFiles  = 512
	// reorder is by how many lines an event may be out of order in its file. Clients write
	// a call when it has ended, and others write in between.
	reorder = 1 << 14
)

// Damage says that a history is incomplete or changed at a place.
type Damage struct {
	At   Place
	What string
}

func (d *Damage) Error() string { return d.At.String() + ": " + d.What }

// Dir is a directory with a history.
type Dir struct {
	path    string
	files   []string // in the order of their names
	damaged func(Damage)
}

// Open finds the files of a history. damaged is called with everything that is wrong with
// a file when it is read; the rest of that file is skipped.
func Open(dir string, damaged func(Damage)) (*Dir, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"+extension))
	switch {
	case err != nil:
		return nil, err
	case len(files) == 0:
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("no history: %w", err)
		}
		return nil, fmt.Errorf("no history in %s: it has no *%s file", dir, extension)
	case len(files) > maxFiles:
		return nil, fmt.Errorf("history %s has %d files; the limit is %d", dir, len(files), maxFiles)
	}
	return &Dir{dir, files, damaged}, nil
}

// Each calls see for every event of the given kinds, file by file, in the order of the
// lines.
func (d *Dir) Each(ctx context.Context, see func(Event), kinds ...string) error {
	for _, path := range d.files {
		if err := d.walk(ctx, []string{path}, 1, kinds, see); err != nil {
			return err
		}
	}
	return nil
}

// InOrder calls see for every event of the given kinds in the order of their instants.
func (d *Dir) InOrder(ctx context.Context, see func(Event), kinds ...string) error {
	return d.walk(ctx, d.files, reorder, kinds, see)
}

// walk merges files. It looks ahead a number of events in each.
func (d *Dir) walk(ctx context.Context, paths []string, ahead int, kinds []string, see func(Event)) error {
	next := &entries{}
	fill := func(f *file) error {
		if f.done {
			return nil
		}
		e, err := f.next(kinds)
		if err == nil {
			heap.Push(next, entry{e, When(e), f.at.Line, f})
			return nil
		}
		f.done = true
		if damage, ok := errors.AsType[*Damage](err); ok {
			d.damaged(*damage)
		} else if !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	}
	var opened []*file
	defer func() {
		for _, f := range opened {
			_ = f.close()
		}
	}()
	for _, path := range paths {
		f, err := openFile(path)
		if err != nil {
			return err
		}
		opened = append(opened, f)
		for range ahead {
			if err := fill(f); err != nil {
				return err
			}
		}
	}
	for n := 0; next.Len() > 0; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		first := heap.Pop(next).(entry)
		f := first.from
		if ahead > 1 && first.when < f.passed {
			d.damaged(Damage{Place{f.at.File, first.line}, fmt.Sprintf("the event is more than %d lines out of order; sort the file", reorder)})
		} else {
			f.passed = first.when
			see(first.event)
		}
		if err := fill(f); err != nil {
			return err
		}
	}
	return nil
}

type entry struct {
	event Event
	when  clock.Instant
	line  int
	from  *file
}

// entries is a heap of the next events of all files, the earliest first.
type entries []entry

func (h entries) Len() int { return len(h) }
func (h entries) Less(i, j int) bool {
	return h[i].when < h[j].when || h[i].when == h[j].when && h[i].line < h[j].line
}
func (h entries) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *entries) Push(x any)   { *h = append(*h, x.(entry)) }
func (h *entries) Pop() any {
	last := (*h)[len(*h)-1]
	*h = slices.Delete(*h, len(*h)-1, len(*h)) // it also clears the entry
	return last
}

// file reads one file.
type file struct {
	in     *bufio.Reader
	close  func() error
	at     Place
	end    *fileSum  // what the last line says; nil before it was read
	sum    hash.Hash // of the lines, if not nil
	done   bool
	passed clock.Instant // of the last event that was seen
}

func openFile(path string) (*file, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return &file{in: bufio.NewReaderSize(f, maxLine), close: f.Close, at: Place{File: filepath.Base(path)}}, nil
}

// next returns the next event of one of the kinds: io.EOF after the last, a *Damage if the
// file is not complete.
func (f *file) next(kinds []string) (Event, error) {
	damage := func(line int, format string, args ...any) error {
		return &Damage{Place{f.at.File, line}, fmt.Sprintf(format, args...)}
	}
	for {
		line, err := f.in.ReadSlice('\n')
		switch eof := errors.Is(err, io.EOF); {
		case eof && len(line) == 0 && f.end != nil:
			return nil, io.EOF
		case eof && len(line) == 0:
			return nil, damage(f.at.Line, "the file has no last line: its writer was not closed")
		case eof:
			return nil, damage(f.at.Line+1, "the last line is incomplete: its writer was not closed")
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, damage(f.at.Line+1, "the line is longer than %d bytes", maxLine)
		case err != nil:
			return nil, fmt.Errorf("history: %w", err)
		case f.end != nil:
			return nil, damage(f.at.Line, "lines follow the last line")
		}
		f.at.Line++
		rest, ok := bytes.CutPrefix(line, []byte(`{"kind":"`))
		kind, _, _ := bytes.Cut(rest, []byte(`"`))
		switch decode := decoders[string(kind)]; {
		case ok && string(kind) == "end":
			f.end = &fileSum{}
			if err := json.Unmarshal(line, f.end); err != nil || f.end.Lines != f.at.Line-1 {
				return nil, damage(f.at.Line, "the last line counts %d lines, and the file has %d", f.end.Lines, f.at.Line-1)
			}
			continue
		case !ok || decode == nil:
			return nil, damage(f.at.Line, "not an event: unknown kind %.20q", kind)
		case slices.Contains(kinds, string(kind)):
			e, err := decode(line, f.at)
			if err != nil {
				return nil, damage(f.at.Line, "not an event: %v", err)
			}
			return e, nil
		}
		if f.sum != nil {
			_, _ = f.sum.Write(line) // a hash returns no error
		}
	}
}

// sumOf returns what the last line of a file says, and the same computed from the others.
func sumOf(path string) (said, found fileSum, err error) {
	f, err := openFile(path)
	if err != nil {
		return said, found, err
	}
	defer func() { _ = f.close() }()
	f.sum = sha256.New()
	if _, err := f.next(nil); !errors.Is(err, io.EOF) {
		return said, found, err
	}
	return *f.end, fileSum{f.at.Line - 1, fmt.Sprintf("%x", f.sum.Sum(nil))}, nil
}

// decoders are by kind of event.
var decoders = map[string]func([]byte, Place) (Event, error){
	"run": decode[Run], "process": decode[Process], "call": decode[Call], "belief": decode[Belief], "seal": decode[Seal],
	"attempt": decode[Attempt], "effect": decode[Effect], "grant": decode[Grant], "fault": decode[Fault],
}

func decode[E Event](line []byte, at Place) (Event, error) {
	var e E
	if err := json.Unmarshal(line, &e); err != nil {
		return nil, err
	}
	// The limits keep sums of instants from overflowing.
	_, instants := e.head()
	ok := !slices.ContainsFunc(instants, func(i clock.Instant) bool { return i < 0 || i > clock.Never/4 })
	if r, is := any(e).(Run); is {
		all := []int64{r.TTLMS, r.BeatMS, r.CallTimeoutMS, r.BackoffMaxMS, r.EngineDelayMS, r.WakeMS, r.LateMS, r.SeenMS, r.TickMS}
		ok = ok && r.Drift >= 0 && r.Drift < 1 && !slices.ContainsFunc(all, func(ms int64) bool { return ms < 0 || ms > time.Hour.Milliseconds()*24*365 })
	}
	if !ok {
		return nil, errors.New("an instant or a duration is negative or centuries away")
	}
	any(&e).(interface{ setLine(Place) }).setLine(at)
	return e, nil
}
