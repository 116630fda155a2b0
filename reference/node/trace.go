package node

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// trace writes down what this node does and sees, for experiments. A nil one writes
// nothing.
type trace struct {
	log *slog.Logger
	pid int

	whole string // api.TraceWhole
	mu    sync.Mutex
	lines uint64
	file  *os.File // nil after an error: a trace with a hole would be taken for whole
}

// openTrace goes on with the file of a process before this one.
func openTrace(dir, id string, log *slog.Logger) (*trace, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, &ConfigError{"trace", err.Error()}
	}
	f, err := os.OpenFile(filepath.Join(dir, id+".trace"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, &ConfigError{"trace", err.Error()}
	}
	t := &trace{log: log, pid: os.Getpid(), file: f}
	t.whole = filepath.Join(dir, api.TraceWhole(id, t.pid))
	if err := os.WriteFile(t.whole, nil, 0o644); err != nil {
		_ = f.Close()
		return nil, &ConfigError{"trace", err.Error()}
	}
	t.add(api.TraceLine{Kind: api.TraceOpened, At: clock.System().Now()})
	if t.file == nil {
		return nil, &ConfigError{"trace", "it cannot be written"}
	}
	return t, nil
}

func (t *trace) add(l api.TraceLine) {
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

func (t *trace) attempted(at clock.Instant, token fence.Token, writes []ledgerapi.Write) {
	if t == nil {
		return
	}
	l := api.TraceLine{Kind: api.TraceAttempt, At: at, Token: token}
	for _, w := range writes {
		switch {
		case w.Sequence != nil:
			l.Writes = append(l.Writes, api.TraceWrite{What: "sequence", Name: w.Sequence.Name, First: w.Sequence.First, Last: w.Sequence.Last})
		case w.Tick != nil:
			l.Writes = append(l.Writes, api.TraceWrite{What: "tick", Name: w.Tick.Key})
		case w.Fire != nil && !w.Fire.Skip:
			l.Writes = append(l.Writes, api.TraceWrite{What: "firing", Name: w.Fire.Job, InstantMS: w.Fire.AtMS})
		case w.Checkpoint != nil:
			l.Writes = append(l.Writes, api.TraceWrite{What: "checkpoint", Name: w.Checkpoint.Name})
		}
	}
	t.add(l)
}

func (t *trace) done(at clock.Instant, took time.Duration, token fence.Token, err error) {
	t.add(api.TraceLine{Kind: api.TraceDone, At: at, End: at.Add(took), Token: token, What: outcome(err)})
}

func (t *trace) sealed(at, end clock.Instant, token fence.Token) {
	t.add(api.TraceLine{Kind: api.TraceSealed, At: at, End: end, Token: token})
}

func (t *trace) saw(l tenure.Leader, at clock.Instant, err error) {
	line := api.TraceLine{Kind: api.TraceBlind, At: at, Token: l.Token, What: l.Candidate.ID}
	switch {
	case err != nil:
	case l.State == tenure.Led:
		line.Kind = api.TraceLed
	case l.State == tenure.Vacant && l.Token > 0:
		line.Kind = api.TraceVacant
	default:
		return
	}
	t.add(line)
}

func (t *trace) note(n lease.Note, at clock.Instant) {
	if t != nil && n.Kind == lease.NoteMissed {
		what := ""
		if n.Err != nil {
			what = n.Err.Error()
		}
		t.add(api.TraceLine{Kind: api.TraceMissed, At: at, What: what})
	}
}
