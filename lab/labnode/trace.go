package labnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/node"
)

// trace is the file of a node's events. A nil trace writes nothing.
type trace struct {
	log *slog.Logger
	pid int

	whole string // labapi.TraceWhole
	mu    sync.Mutex
	lines uint64
	file  *os.File // nil after an error: nothing may follow a missing line
}

// openTrace appends to the file of earlier processes of the node.
func openTrace(dir, id string, log *slog.Logger) (*trace, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, id+".trace"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	t := &trace{log: log, pid: os.Getpid(), file: f}
	t.whole = filepath.Join(dir, labapi.TraceWhole(id, t.pid))
	if err := os.WriteFile(t.whole, nil, 0o644); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("trace: %w", err)
	}
	t.add(labapi.TraceLine{Kind: labapi.TraceOpened, At: clock.System().Now()})
	if t.file == nil {
		return nil, errors.New("trace: the first line could not be written")
	}
	return t, nil
}

func (t *trace) add(l labapi.TraceLine) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == nil {
		return
	}
	t.lines++
	l.PID, l.N = t.pid, t.lines
	line, err := json.Marshal(l)
	if err == nil {
		_, err = t.file.Write(append(line, '\n'))
	}
	if err != nil {
		t.log.Error("the trace cannot be written and ends here", "error", errors.Join(err, os.Remove(t.whole)))
		_ = t.file.Close()
		t.file = nil
	}
}

func (t *trace) close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file != nil {
		_ = t.file.Close() // every line has been written
		t.file = nil
	}
}

// event writes an event of the node.
func (t *trace) event(e node.Event) {
	if t == nil {
		return
	}
	l := labapi.TraceLine{Kind: e.Kind, At: e.At, End: e.End, Token: e.Token, What: e.What}
	for _, w := range e.Writes {
		switch {
		case w.Sequence != nil:
			l.Writes = append(l.Writes, history.Write{What: history.EffectSequence, Name: w.Sequence.Name, First: w.Sequence.First, Last: w.Sequence.Last})
		case w.Tick != nil:
			l.Writes = append(l.Writes, history.Write{What: history.EffectTick, Name: w.Tick.Key})
		case w.Fire != nil && !w.Fire.Skip:
			l.Writes = append(l.Writes, history.Write{What: history.EffectFiring, Name: w.Fire.Job, InstantMS: w.Fire.AtMS})
		case w.Checkpoint != nil:
			l.Writes = append(l.Writes, history.Write{What: history.EffectCheckpoint, Name: w.Checkpoint.Name})
		}
	}
	t.add(l)
}
