package auth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
)

// AuditFile configures the audit file. Each instance needs a file of its own.
type AuditFile struct {
	// Path of the file. Full files become Path.1, Path.2 and so on; the oldest has the
	// highest number. Empty: entries go to the log instead.
	Path string
	// MaxBytes of one file. Default 64 MiB, at least 4 KiB.
	MaxBytes int64
	// Files kept in all. Default 8, at least 2.
	Files int
	// Queue is how many entries wait while the disk is full or broken. Default 8192.
	Queue int
}

func (a AuditFile) withDefaults() AuditFile {
	def(&a.MaxBytes, 64<<20)
	def(&a.Files, 8)
	def(&a.Queue, 8192)
	return a
}

func (a AuditFile) check() error {
	if a.MaxBytes < 4<<10 || a.Files < 2 || a.Files > 1000 || a.Queue < 1 {
		return fmt.Errorf("auth: the audit has %d files of %d bytes and a queue of %d; want 2 to 1000 files, at least 4096 bytes and a queue of at least 1", a.Files, a.MaxBytes, a.Queue)
	}
	return nil
}

// The results of an audit entry.
const (
	Done    = "done"
	Denied  = "denied"  // not authenticated, or not allowed
	Limited = "limited" // over a limit
	Failed  = "failed"  // allowed, but it failed
	Pending = "pending" // accepted; the outcome is not known yet
)

// Entry is one line of the audit.
type Entry struct {
	// Who, How, Remote and Node are taken from the request's context when empty.
	Who    string
	How    How
	Remote string
	// Node is the node id that an anonymous caller gave.
	Node string
	// What is the operation: "campaign", "POST /v1/groups/{group}/resign".
	What   string
	Group  string
	Token  fence.Token
	Result string
	// Reason is that of the caller, or why the request was refused.
	Reason string
}

// line is an Entry as it is written.
type line struct {
	At     string      `json:"at"`
	Who    string      `json:"who,omitempty"`
	How    How         `json:"how,omitempty"`
	Remote string      `json:"remote,omitempty"`
	Node   string      `json:"node,omitempty"`
	What   string      `json:"what"`
	Group  string      `json:"group,omitempty"`
	Token  fence.Token `json:"token,omitempty"`
	Result string      `json:"result"`
	Reason string      `json:"reason,omitempty"`
	// Omitted counts earlier denials and failures of this caller that have no line.
	Omitted int `json:"omitted,omitempty"`
	// Lost counts earlier lines that could not be written.
	Lost uint64 `json:"lost,omitempty"`
}

// Audit writes an entry. It does not block and does not fail; the package comment says what
// that costs. Failures of a caller count as denials, and are omitted above their rate.
func (g *Gate) Audit(ctx context.Context, e Entry) {
	a, ok := ctx.Value(callerKey{}).(*admitted)
	if ok {
		def(&e.Who, a.id.Name)
		def(&e.How, a.id.How)
		def(&e.Remote, host(a.remote))
		def(&e.Node, a.node)
	}
	if ok && e.Result != Done && e.Result != Pending {
		g.tell(a.id, e)
		return
	}
	g.write(e, 0)
}

func (g *Gate) write(e Entry, omitted int) {
	say := func(s string) string { return atMost(Redact(s), 512) }
	l := line{
		At:  g.cfg.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00"),
		Who: say(e.Who), How: How(say(string(e.How))), Remote: say(e.Remote), Node: say(e.Node), What: say(e.What), Group: say(e.Group),
		Token: e.Token, Result: say(e.Result), Reason: say(e.Reason), Omitted: omitted,
	}
	if g.audit == nil {
		g.cfg.Log.Info("audit", "who", l.Who, "how", l.How, "remote", l.Remote, "node", l.Node, "what", l.What, "group", l.Group,
			"token", uint64(l.Token), "result", l.Result, "reason", l.Reason, "omitted", l.Omitted)
		return
	}
	g.audit.add(encode(l))
}

func encode(l line) []byte {
	// A struct of strings and numbers cannot fail. Invalid UTF-8 is replaced.
	b, _ := json.Marshal(l)
	return append(b, '\n')
}

// auditor writes entries from a bounded queue to the file.
type auditor struct {
	file  *appendFile
	log   *slog.Logger
	now   func() time.Time
	queue int

	mu    sync.Mutex
	held  [][]byte
	lost  uint64 // since the last line that reported it
	total uint64 // lost since the start
	fault string

	wake chan struct{}
}

func newAuditor(cfg AuditFile, log *slog.Logger, now func() time.Time) (*auditor, error) {
	f := &appendFile{path: cfg.Path, most: cfg.MaxBytes, files: cfg.Files}
	if err := f.open(); err != nil {
		return nil, fmt.Errorf("auth: open the audit file: %w", err)
	}
	return &auditor{file: f, log: log, now: now, queue: cfg.Queue, wake: make(chan struct{}, 1)}, nil
}

func (a *auditor) add(b []byte) {
	a.mu.Lock()
	if len(a.held) >= a.queue {
		a.lost++
		a.total++
	} else {
		a.held = append(a.held, b)
	}
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// syncEvery is how often the file is synced, and how often a write is retried after an error.
const syncEvery = time.Second

// run writes entries until closed, then writes the rest.
func (a *auditor) run(closed <-chan struct{}) {
	t := time.NewTicker(syncEvery)
	defer t.Stop()
	broken := false
	for {
		select {
		case <-a.wake:
			// After an error only the tick retries, once a second.
			if !broken {
				broken = !a.told(a.drain())
			}
		case <-t.C:
			broken = !a.told(errors.Join(a.drain(), a.file.sync()))
		case <-closed:
			a.told(errors.Join(a.drain(), a.file.close()))
			if waiting, lost, _ := a.state(); waiting > 0 {
				a.log.Error("audit entries are lost", "waiting_at_shutdown", waiting, "lost_before", lost)
			}
			return
		}
	}
}

// drain writes the held entries, in pieces.
func (a *auditor) drain() error {
	piece := int(min(256<<10, a.file.most))
	for {
		a.mu.Lock()
		var buf bytes.Buffer
		if a.lost > 0 {
			buf.Write(encode(line{At: a.now().UTC().Format(time.RFC3339Nano), What: "audit", Result: Failed, Reason: "lines before this one were lost", Lost: a.lost}))
		}
		n, lost := 0, a.lost
		for n < len(a.held) && (buf.Len() == 0 || buf.Len()+len(a.held[n]) <= piece) {
			buf.Write(a.held[n])
			n++
		}
		a.mu.Unlock()
		if buf.Len() == 0 {
			return nil
		}
		if err := a.file.append(buf.Bytes()); err != nil {
			return err
		}
		a.mu.Lock()
		clear(a.held[:n])
		a.held = a.held[n:]
		if len(a.held) == 0 {
			a.held = nil
		}
		a.lost -= lost
		a.mu.Unlock()
	}
}

// told logs the first failure of a series, and its end. It reports whether err is nil.
func (a *auditor) told(err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil && a.fault == "":
		a.fault = err.Error()
		a.log.Error("cannot write the audit; entries wait and elections go on; check the disk", "error", err, "waiting", len(a.held))
	case err == nil && a.fault != "":
		a.fault = ""
		a.log.Info("the audit is written again")
	}
	return err == nil
}

func (a *auditor) state() (waiting int, lost uint64, fault string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.held), a.total, a.fault
}
