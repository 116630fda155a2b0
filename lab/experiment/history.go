package experiment

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
)

// collect turns what the nodes wrote down and what the ledger has into files of the
// history. It fails if a node lost a line, or the ledger has forgotten something: what
// is counted later would be too little.
func collect(ctx context.Context, history, traces, db string) ([]effect, error) {
	paths, err := filepath.Glob(filepath.Join(traces, "*.trace"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("the nodes left no trace in %s", traces)
	}
	var effects []effect
	for _, path := range paths {
		part, err := collectNode(history, path)
		if err != nil {
			return nil, err
		}
		effects = append(effects, part...)
	}
	w, err := check.Create(history, "ledger", 0)
	if err != nil {
		return nil, err
	}
	return effects, errors.Join(collectLedger(ctx, w, db), w.Close())
}

// effect is from when to when a leader's writes took effect: when the first and the
// last that the ledger acknowledged were sent. When callers heard of it is no measure:
// a leader that is paused answers when it wakes up what took effect before.
type effect struct {
	Node  string        `json:"node"`
	Token fence.Token   `json:"token"`
	First clock.Instant `json:"first"`
	Last  clock.Instant `json:"last"`
}

// acknowledged adds a write.
func acknowledged(all []effect, node string, token fence.Token, at clock.Instant) []effect {
	for i := range all {
		if e := &all[i]; e.Token == token {
			e.First, e.Last = min(e.First, at), max(e.Last, at)
			return all
		}
	}
	return append(all, effect{node, token, at, at})
}

// attemptName is what an attempt and its end have in common.
type attemptName struct {
	pid   int
	token fence.Token
	at    clock.Instant
}

// collectNode reads the trace of one node, which may have been several processes.
func collectNode(history, path string) ([]effect, error) {
	node := strings.TrimSuffix(filepath.Base(path), ".trace")
	var events []check.Event
	var effects []effect
	open := map[attemptName]int{}
	whole := map[int]bool{}
	lines := map[int]uint64{} // by process
	err := eachLine(path, "", func(l labapi.TraceLine) error {
		if !whole[l.PID] {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), labapi.TraceWhole(node, l.PID))); err != nil {
				return fmt.Errorf("%s (pid %d) could not write everything down, its log says why: %w", node, l.PID, err)
			}
			whole[l.PID] = true
		}
		if l.Kind == labapi.TraceOpened {
			lines[l.PID] = 0
		}
		if lines[l.PID]++; l.N != lines[l.PID] {
			return fmt.Errorf("%s (pid %d) wrote line %d, and line %d is missing", node, l.PID, l.N, lines[l.PID])
		}
		name := attemptName{l.PID, l.Token, l.At}
		switch l.Kind {
		case api.TraceAttempt:
			open[name] = len(events)
			events = append(events, check.Attempt{Node: node, Token: l.Token, At: l.At, Writes: writesOf(l)})
		case api.TraceDone:
			i, ok := open[name]
			if !ok {
				return fmt.Errorf("a write of %s with token %d ended that had not begun", node, l.Token)
			}
			delete(open, name)
			a := events[i].(check.Attempt)
			a.End, a.Outcome = l.End, l.What
			events[i] = a
			if l.What == check.OutcomeOK {
				effects = acknowledged(effects, node, l.Token, l.At)
			}
		case labapi.TraceOpened:
			events = append(events, check.Process{Node: node, PID: l.PID, At: l.At})
		case api.TraceMissed:
			events = append(events, check.Belief{Node: node, State: check.Missed, At: l.At})
		case api.TraceSealed:
			events = append(events, check.Seal{Node: node, Token: l.Token, At: l.At, End: l.End})
		case api.TraceBegan:
			events = append(events, check.Belief{Node: node, Token: l.Token, State: check.Began, At: l.At})
		case api.TraceEnded:
			events = append(events, check.Belief{Node: node, Token: l.Token, State: check.Ended, At: l.At, Cause: l.What})
		case api.TraceLed, api.TraceVacant, api.TraceUnknown:
			// Each process is an observer of its own: one that starts again begins anew.
			g := check.Grant{Observer: fmt.Sprint(node, "/", l.PID), State: l.Kind, Token: l.Token, At: l.At}
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
	w, err := check.Create(history, node, 0)
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

// eachLine reads a file with one JSON value a line. Lines without the given text are
// passed over unread.
func eachLine[T any](path, with string, see func(T) error) error {
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

// writesOf are the effects that an attempt asks for.
func writesOf(l labapi.TraceLine) (all []check.Write) {
	for _, w := range l.Writes {
		x := check.Write{What: w.What, Name: w.Name, First: w.First, Last: w.Last, InstantMS: w.InstantMS}
		if w.What == check.EffectTick {
			x.Name, x.InstantMS = "", check.TickInstant(w.Name)
		}
		all = append(all, x)
	}
	return all
}

// collectLedger reads what took effect and what was refused.
func collectLedger(ctx context.Context, w *check.Writer, path string) error {
	db, err := openDB(path)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	forgotten, err := check.Forgotten(ctx, db)
	if err != nil {
		return fmt.Errorf("the ledger's database: %w", err)
	}
	if len(forgotten) > 0 {
		return fmt.Errorf("the ledger has forgotten %s: what it did cannot be counted", strings.Join(forgotten, ", "))
	}
	return check.Effects(ctx, db, group, func(e check.Effect) error { return w.Write(e) })
}

func openDB(path string) (*sql.DB, error) {
	if _, err := os.Stat(path); err != nil { // SQLite would make one
		return nil, err
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: "_pragma=busy_timeout(10000)&_pragma=query_only(1)"}
	return sql.Open("sqlite", u.String())
}

// damage is what the ledger has of writes that it should not have taken.
type damage struct {
	// Refused and Applied count stale writes: turned away, and made although stale. Applied
	// are rows whose token is below one that stands before them, which a ledger has whether
	// or not it noticed; or, if those are more, the stale writes that it says it took.
	Refused int64 `json:"stale_writes_refused"`
	Applied int64 `json:"stale_writes_accepted"`
	// Reused counts numbers that were allocated more than once.
	Reused int64 `json:"numbers_reused"`
}

// staleQuery counts rows that were written with a smaller token than one before them.
const staleQuery = `SELECT COUNT(*) FROM (
	SELECT token, MAX(token) OVER (PARTITION BY of_what ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS high
	FROM %s WHERE resource = ?
) WHERE token < high`

func damageOf(ctx context.Context, path string) (d damage, err error) {
	db, err := openDB(path)
	if err != nil {
		return d, err
	}
	defer func() { _ = db.Close() }()
	if err := db.QueryRowContext(ctx, `SELECT COUNT(*) FILTER (WHERE applied = 0), COUNT(*) FILTER (WHERE applied <> 0)
		FROM rejection WHERE resource = ? AND token < current_token`, group).Scan(&d.Refused, &d.Applied); err != nil {
		return d, err
	}
	stale := int64(0)
	for _, table := range []string{"(SELECT name AS of_what, * FROM allocation)", "(SELECT '' AS of_what, * FROM tick)", "(SELECT '' AS of_what, * FROM firing)"} {
		var n int64
		if err := db.QueryRowContext(ctx, fmt.Sprintf(staleQuery, table), group).Scan(&n); err != nil {
			return d, err
		}
		stale += n
	}
	d.Applied = max(d.Applied, stale)
	rows, err := db.QueryContext(ctx, "SELECT first_seq, last_seq FROM allocation WHERE resource = ?", group)
	if err != nil {
		return d, err
	}
	defer func() { _ = rows.Close() }()
	type part struct{ first, last int64 }
	var all []part
	for rows.Next() {
		var p part
		if err := rows.Scan(&p.first, &p.last); err != nil {
			return d, err
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b part) int { return int(a.first - b.first) })
	var high int64
	for _, p := range all {
		d.Reused += max(0, min(high, p.last)-p.first+1)
		high = max(high, p.last)
	}
	return d, rows.Err()
}
