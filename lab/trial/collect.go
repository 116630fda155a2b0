package trial

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/lab/ledgerdb"
	"github.com/tenurehq/tenure/reference/api"
)

// Effect is the time in which a leader's writes took effect: when the first and the last
// acknowledged write was sent. Answers to callers do not show this: a leader that was paused
// answers later for writes that took effect before.
type Effect struct {
	Node  string        `json:"node"`
	Token fence.Token   `json:"token"`
	First clock.Instant `json:"first"`
	Last  clock.Instant `json:"last"`
}

// collect turns the nodes' traces and the ledger's database into files of the history. It
// fails if a line of a trace is missing or the ledger has dropped rows.
func collect(ctx context.Context, historyDir, traces, db string) (effects []Effect, err error) {
	paths, err := filepath.Glob(filepath.Join(traces, "*.trace"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("the nodes left no trace in %s", traces)
	}
	for _, path := range paths {
		part, err := collectNode(historyDir, path)
		if err != nil {
			return nil, err
		}
		effects = append(effects, part...)
	}
	w, err := history.Create(historyDir, "ledger")
	if err != nil {
		return nil, err
	}
	return effects, errors.Join(collectLedger(ctx, w, db), w.Close())
}

// acknowledge adds a write to the effects.
func acknowledge(all []Effect, node string, token fence.Token, at clock.Instant) []Effect {
	for i := range all {
		if e := &all[i]; e.Token == token {
			e.First, e.Last = min(e.First, at), max(e.Last, at)
			return all
		}
	}
	return append(all, Effect{node, token, at, at})
}

// collectNode converts the trace of one node, which may be of several processes.
func collectNode(historyDir, path string) (effects []Effect, err error) {
	type attempt struct { // identifies an attempt, at its begin and at its end
		pid   int
		token fence.Token
		at    clock.Instant
	}
	node := strings.TrimSuffix(filepath.Base(path), ".trace")
	var events []history.Event
	open := map[attempt]int{}
	lines := map[int]uint64{} // by process
	err = EachLine(path, "", func(l labapi.TraceLine) error {
		if _, known := lines[l.PID]; !known {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), labapi.TraceWhole(node, l.PID))); err != nil {
				return fmt.Errorf("%s (pid %d) could not write its whole trace, see its log: %w", node, l.PID, err)
			}
		}
		if l.Kind == labapi.TraceOpened {
			lines[l.PID] = 0
		}
		if lines[l.PID]++; l.N != lines[l.PID] {
			return fmt.Errorf("trace of %s (pid %d): line %d is missing, found line %d", node, l.PID, lines[l.PID], l.N)
		}
		name := attempt{l.PID, l.Token, l.At}
		switch l.Kind {
		case api.TraceAttempt:
			open[name] = len(events)
			events = append(events, history.Attempt{Node: node, Token: l.Token, At: l.At, Writes: writesOf(l)})
		case api.TraceDone:
			i, ok := open[name]
			if !ok {
				return fmt.Errorf("trace of %s: a write with token %d ended without a beginning", node, l.Token)
			}
			delete(open, name)
			a := events[i].(history.Attempt)
			a.End, a.Outcome = l.End, l.What
			events[i] = a
			if l.What == history.OutcomeOK {
				effects = acknowledge(effects, node, l.Token, l.At)
			}
		case labapi.TraceOpened:
			events = append(events, history.Process{Node: node, PID: l.PID, At: l.At})
		case api.TraceMissed:
			events = append(events, history.Belief{Node: node, State: history.Missed, At: l.At})
		case api.TraceSealed:
			events = append(events, history.Seal{Node: node, Token: l.Token, At: l.At, End: l.End})
		case api.TraceBegan:
			events = append(events, history.Belief{Node: node, Token: l.Token, State: history.Began, At: l.At})
		case api.TraceEnded:
			events = append(events, history.Belief{Node: node, Token: l.Token, State: history.Ended, At: l.At, Cause: l.What})
		case api.TraceLed, api.TraceVacant, api.TraceUnknown:
			// Each process is an observer of its own.
			g := history.Grant{Observer: fmt.Sprint(node, "/", l.PID), State: l.Kind, Token: l.Token, At: l.At}
			if l.Kind == api.TraceLed {
				g.Holder = l.What
			}
			events = append(events, g)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	w, err := history.Create(historyDir, node)
	if err != nil {
		return nil, err
	}
	for _, e := range events {
		if err := w.Write(e); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	return effects, w.Close()
}

// writesOf returns the effects that an attempt asks for. A tick has its instant in its name.
func writesOf(l labapi.TraceLine) []history.Write {
	for i := range l.Writes {
		if w := &l.Writes[i]; w.What == history.EffectTick {
			w.Name, w.InstantMS = "", ledgerdb.TickInstant(w.Name)
		}
	}
	return l.Writes
}

// EachLine reads a file with one JSON value a line. Lines without the given text are skipped
// without being decoded.
func EachLine[T any](path, with string, see func(T) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewScanner(f)
	for in.Scan() {
		if !bytes.Contains(in.Bytes(), []byte(with)) {
			continue
		}
		var v T
		err := json.Unmarshal(in.Bytes(), &v)
		if err == nil {
			err = see(v)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return in.Err()
}

// EachCall reads the calls of a trial's history.
func EachCall(dir string, see func(history.Call) error) error {
	return EachLine(filepath.Join(dir, HistoryDir, callsName+".ndjson"), "", see)
}

// collectLedger reads what took effect and what was refused.
func collectLedger(ctx context.Context, w *history.Writer, path string) error {
	db, err := ledgerdb.Open(path, false)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	dropped, err := ledgerdb.Deleted(ctx, db)
	if err != nil {
		return fmt.Errorf("read the ledger's database: %w", err)
	}
	if len(dropped) > 0 {
		return fmt.Errorf("the ledger has dropped %s: its effects cannot be counted", strings.Join(dropped, ", "))
	}
	return ledgerdb.Effects(ctx, db, Group, func(e history.Effect) error { return w.Write(e) })
}

// Damage counts what the ledger should not have accepted.
type Damage struct {
	// Refused and Applied count stale writes. Applied are rows whose token is below that of
	// an earlier row or, if those are more, the stale writes that the ledger says it applied.
	Refused int64 `json:"stale_writes_refused"`
	Applied int64 `json:"stale_writes_accepted"`
	// Reused counts numbers that were allocated more than once.
	Reused int64 `json:"numbers_reused"`
}

// damageQuery counts the stale writes refused and applied by the ledger's own list, the rows
// with a token below that of an earlier row, and the numbers in more than one allocation.
const damageQuery = `SELECT
	(SELECT COUNT(*) FROM rejection WHERE resource = ?1 AND token < current_token AND applied = 0),
	(SELECT COUNT(*) FROM rejection WHERE resource = ?1 AND token < current_token AND applied <> 0),
	(SELECT COUNT(*) FROM (
		SELECT token, MAX(token) OVER (PARTITION BY kind, name ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS high FROM (
			SELECT 'allocation' AS kind, name, n, token FROM allocation WHERE resource = ?1
			UNION ALL SELECT 'tick', '', n, token FROM tick WHERE resource = ?1
			UNION ALL SELECT 'firing', '', n, token FROM firing WHERE resource = ?1)
	) WHERE token < high),
	(SELECT COALESCE(SUM(MAX(0, MIN(high, last_seq) - first_seq + 1)), 0) FROM (
		SELECT first_seq, last_seq, MAX(last_seq) OVER (ORDER BY first_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS high
		FROM allocation WHERE resource = ?1))`

func damageOf(ctx context.Context, path string) (d Damage, err error) {
	db, err := ledgerdb.Open(path, false)
	if err != nil {
		return d, err
	}
	defer func() { _ = db.Close() }()
	var stale int64
	err = db.QueryRowContext(ctx, damageQuery, Group).Scan(&d.Refused, &d.Applied, &stale, &d.Reused)
	d.Applied = max(d.Applied, stale)
	return d, err
}
