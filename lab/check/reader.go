package check

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/tenurehq/tenure/clock"
)

const (
	extension = ".ndjson"
	maxLine   = 1 << 20
	maxFiles  = 512
)

// Place is a line of a history, or a row of a ledger.
type Place struct {
	File string `json:"file"`
	Line int    `json:"line"`
}

func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// historyError: the history is not whole at that place.
type historyError struct {
	at   Place
	what string
}

func (e *historyError) Error() string { return e.at.String() + ": " + e.what }

// files are the paths of a history's files, in the order of their names.
func files(dir string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+extension))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("check: no history: %w", err)
		}
		return nil, fmt.Errorf("check: no history in %s: there is no *%s file", dir, extension)
	}
	if len(paths) > maxFiles {
		return nil, fmt.Errorf("check: %d files in %s, at most %d are read", len(paths), dir, maxFiles)
	}
	return paths, nil
}

// lines reads one file.
type lines struct {
	file *os.File
	in   *bufio.Reader
	at   Place
	// ended: the line that counts the others was read.
	ended bool
}

func open(path string) (*lines, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	return &lines{file: f, in: bufio.NewReaderSize(f, maxLine), at: Place{File: filepath.Base(path)}}, nil
}

// next returns the next event whose kind is wanted: io.EOF after the last, a
// historyError if the file is not whole.
func (l *lines) next(want func(kind string) bool) (Event, error) {
	for {
		line, err := l.in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			if !l.ended {
				return nil, &historyError{l.at, "the file has no end: its writer did not finish"}
			}
			return nil, io.EOF
		case errors.Is(err, io.EOF):
			return nil, &historyError{Place{l.at.File, l.at.Line + 1}, "the last line is torn: its writer did not finish"}
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, &historyError{Place{l.at.File, l.at.Line + 1}, fmt.Sprintf("the line is longer than %d bytes", maxLine)}
		case err != nil:
			return nil, fmt.Errorf("check: %w", err)
		}
		if l.ended {
			return nil, &historyError{l.at, "the file goes on after its end"}
		}
		l.at.Line++
		kind, err := kindOf(line)
		if err != nil {
			return nil, &historyError{l.at, err.Error()}
		}
		if kind == "end" {
			if err := l.end(line); err != nil {
				return nil, err
			}
			continue
		}
		if !want(kind) {
			continue
		}
		e, err := decode(kind, line)
		if err != nil {
			return nil, &historyError{l.at, err.Error()}
		}
		return e, nil
	}
}

func (l *lines) end(line []byte) error {
	var end struct {
		Lines int `json:"lines"`
	}
	if err := json.Unmarshal(line, &end); err != nil || end.Lines != l.at.Line-1 {
		return &historyError{l.at, fmt.Sprintf("the end speaks of %d lines, and there are %d", end.Lines, l.at.Line-1)}
	}
	l.ended = true
	return nil
}

func (l *lines) close() { _ = l.file.Close() }

func kindOf(line []byte) (string, error) {
	if rest, ok := bytes.CutPrefix(line, []byte(`{"kind":"`)); ok {
		if i := bytes.IndexByte(rest, '"'); i >= 0 && i < 16 {
			return string(rest[:i]), nil
		}
	}
	var k struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(line, &k); err != nil {
		return "", fmt.Errorf("no event: %w", err)
	}
	if k.Kind == "" {
		return "", errors.New("no event: it has no kind")
	}
	return k.Kind, nil
}

// decoders are by kind of event.
var decoders = map[string]func([]byte) (Event, error){
	"run": into[Run], "process": into[Process], "call": into[Call], "belief": into[Belief], "seal": into[Seal],
	"attempt": into[Attempt], "effect": into[Effect], "grant": into[Grant], "fault": into[Fault],
}

func decode(kind string, line []byte) (Event, error) {
	read := decoders[kind]
	if read == nil {
		return nil, fmt.Errorf("no event: unknown kind %q", kind)
	}
	return read(line)
}

func into[E Event](line []byte) (Event, error) {
	var e E
	if err := json.Unmarshal(line, &e); err != nil {
		return nil, fmt.Errorf("no event: %w", err)
	}
	if !plausible(e) {
		return nil, errors.New("no event: an instant or a duration is negative or centuries away")
	}
	return e, nil
}

// plausible keeps sums of instants from wrapping around.
func plausible(e Event) bool {
	within := func(all ...clock.Instant) bool {
		for _, i := range all {
			if i < 0 || i > clock.Never/4 {
				return false
			}
		}
		return true
	}
	switch e := e.(type) {
	case Run:
		for _, d := range []int64{e.TTLMS, e.BeatMS, e.CallTimeoutMS, e.BackoffMaxMS, e.EngineDelayMS, e.WakeMS, e.LateMS, e.SeenMS, e.TickMS} {
			if d < 0 || d > time.Hour.Milliseconds()*24*365 {
				return false
			}
		}
		return within(e.At) && e.Drift >= 0 && e.Drift < 1
	case Call:
		return within(e.Start, e.End)
	case Seal:
		return within(e.At, e.End)
	case Attempt:
		return within(e.At, e.End)
	case Fault:
		return within(e.Begun, e.Healed, e.Set, e.Held)
	}
	return within(e.when())
}

// each calls see for every event of the wanted kinds, file by file. A file that is not
// whole is told to broken and read no further.
func each(ctx context.Context, dir string, want func(string) bool, see func(Event, Place) error, broken func(*historyError)) error {
	paths, err := files(dir)
	if err != nil {
		return err
	}
	for _, path := range paths {
		l, err := open(path)
		if err != nil {
			return err
		}
		for n := 0; err == nil; n++ {
			if n%1024 == 0 && ctx.Err() != nil {
				err = ctx.Err()
				break
			}
			var e Event
			if e, err = l.next(want); err == nil {
				err = see(e, l.at)
			}
		}
		l.close()
		var h *historyError
		switch {
		case errors.As(err, &h):
			broken(h)
		case !errors.Is(err, io.EOF):
			return err
		}
	}
	return nil
}
